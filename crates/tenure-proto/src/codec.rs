//! Messages to bytes and back, in room of the right size.
//!
//! The usual codec sets 16 KiB aside for every call, most of them for messages of a hundred bytes: that
//! is more work than the messages. Here a small call takes little, and a large message gets what it needs
//! at once.

use std::marker::PhantomData;

use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, EncodeBuf, Encoder};
use tonic_prost::{ProstCodec, ProstDecoder};

/// What most requests and answers fit in.
const SMALL: usize = 512;
/// Messages of a stream that are ready together go together up to this.
const TOGETHER: usize = 32 * 1024;

fn settings() -> BufferSettings {
    BufferSettings::new(SMALL, TOGETHER)
}

/// The codec of all services.
pub struct Compact<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Compact<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for Compact<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = Exact<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Exact<T> {
        Exact(PhantomData)
    }

    fn decoder(&mut self) -> ProstDecoder<U> {
        ProstCodec::<T, U>::raw_decoder(settings())
    }
}

/// Makes exactly the room that a message needs.
pub struct Exact<T>(PhantomData<T>);

impl<T: Message> Encoder for Exact<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buf.reserve(item.encoded_len());
        item.encode(buf).map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        settings()
    }
}
