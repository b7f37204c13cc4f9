//! What Tenure's stores, server and client share to reach others.
//!
//! - [`tls`]: one client set-up on rustls and aws-lc-rs: whom to trust, which certificate to show, which
//!   name the server must prove.
//! - [`fetch`]: an HTTP GET for one small document, bounded in time and size.
//! - [`address`]: the percent-encoded parts of an address, with errors that name the part.
//!
//! Errors are [`tenure::Error`] where the user gave something that is wrong. They name what is wrong and
//! never repeat a password.

pub mod address;
pub mod fetch;
pub mod tls;
