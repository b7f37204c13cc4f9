//! The message that users embed in their own is on the wire what the library's type is.

#![expect(clippy::unwrap_used, reason = "what fails in a helper of the test fails the test")]

use std::path::Path;

use prost::Message as _;
use protox::prost_reflect::{DynamicMessage, MessageDescriptor, Value};
use tenure::store::ObjectMeta;

fn described() -> MessageDescriptor {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let mut compiler = protox::Compiler::new([proto]).unwrap();
    compiler.open_file("tenure/v1/object_meta.proto").unwrap();
    compiler.descriptor_pool().get_message_by_name("tenure.v1.ObjectMeta").unwrap()
}

fn field(message: &DynamicMessage, name: &str) -> Value {
    message.get_field_by_name(name).unwrap().into_owned()
}

#[test]
fn the_message_is_encoded_as_the_librarys_type() {
    let meta = ObjectMeta {
        id: "1001".to_owned(),
        name: "first".to_owned(),
        created_at_ms: -7,
        labels: [("zone".to_owned(), "a".to_owned())].into(),
        resource_version: u64::MAX,
    };
    let bytes = meta.encode_to_vec();
    let message = DynamicMessage::decode(described(), bytes.as_slice()).unwrap();
    assert_eq!(message.unknown_fields().count(), 0);
    assert_eq!(field(&message, "id").as_str(), Some("1001"));
    assert_eq!(field(&message, "name").as_str(), Some("first"));
    assert_eq!(field(&message, "created_at_ms").as_i64(), Some(-7));
    assert_eq!(field(&message, "resource_version").as_u64(), Some(u64::MAX));
    assert_eq!(field(&message, "labels").as_map().map(|labels| labels.len()), Some(1));
    assert_eq!(message.encode_to_vec(), bytes);
    assert_eq!(ObjectMeta::decode(message.encode_to_vec().as_slice()).unwrap(), meta);
}
