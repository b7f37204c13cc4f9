//! A row's place in its table, by which a locked row is found again without an index, and the
//! transaction that put it there, by which a row that is not locked is told from a later one.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

/// Block and position, as Postgres sends them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tid {
    block: u32,
    position: u16,
}

impl<'a> FromSql<'a> for Tid {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        let [a, b, c, d, e, f] = *<&[u8; 6]>::try_from(raw)?;
        Ok(Self { block: u32::from_be_bytes([a, b, c, d]), position: u16::from_be_bytes([e, f]) })
    }

    accepts!(TID);
}

impl ToSql for Tid {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.put_u32(self.block);
        out.put_u16(self.position);
        Ok(IsNull::No)
    }

    accepts!(TID);
    to_sql_checked!();
}

/// The number of a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Xid(u32);

impl<'a> FromSql<'a> for Xid {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(u32::from_be_bytes(*<&[u8; 4]>::try_from(raw)?)))
    }

    accepts!(XID);
}

impl ToSql for Xid {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.put_u32(self.0);
        Ok(IsNull::No)
    }

    accepts!(XID);
    to_sql_checked!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_out_as_it_came_in() {
        let raw = [0, 1, 2, 3, 4, 5];
        let tid = Tid::from_sql(&Type::TID, &raw).unwrap();
        let mut out = BytesMut::new();
        tid.to_sql(&Type::TID, &mut out).unwrap();
        assert_eq!(out.as_ref(), raw);
        assert!(Tid::from_sql(&Type::TID, &raw[1..]).is_err());
        let xid = Xid::from_sql(&Type::XID, &raw[..4]).unwrap();
        let mut out = BytesMut::new();
        xid.to_sql(&Type::XID, &mut out).unwrap();
        assert_eq!(out.as_ref(), &raw[..4]);
    }
}
