//! Tenure's store on Postgres
