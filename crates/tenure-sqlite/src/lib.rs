//! Tenure's store in one SQLite file
