//! Private servers for Tenure's tests and benchmarks
