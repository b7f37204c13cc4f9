//! A real server on a free port, driven by the clients that the .proto files make.

mod elections;
mod grpc;
mod leases;
mod limits;
mod serving;
mod sessions;
mod shutdown;
mod slots;
