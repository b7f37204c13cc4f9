//! The generated code is checked in, so that nobody needs a compiler for .proto files; this test makes
//! sure that it is what the .proto files say. Run it with `TENURE_REGENERATE=1` after changing them.

#![expect(clippy::unwrap_used, reason = "what fails in a helper of the test fails the test")]

use std::path::{Path, PathBuf};

const FILES: [&str; 2] = ["tenure/v1/store.proto", "tenure/v1/leases.proto"];

#[test]
fn the_generated_code_is_what_the_proto_files_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let checked_in = root.join("src/generated");
    let fresh = generate(&root.join("proto"));
    for (name, contents) in fresh {
        let path = checked_in.join(&name);
        if std::env::var_os("TENURE_REGENERATE").is_some() {
            std::fs::write(&path, &contents).unwrap();
        }
        let kept = std::fs::read(&path).unwrap_or_default();
        assert!(
            kept == contents,
            "{name} is not what the .proto files say; run TENURE_REGENERATE=1 cargo test -p tenure-proto"
        );
    }
}

/// What the compiler makes of the .proto files: name and contents.
fn generate(proto: &Path) -> Vec<(String, Vec<u8>)> {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("generated");
    std::fs::create_dir_all(&out).unwrap();
    // Without comments, reflection would have nothing to say about fields.
    let mut compiler = protox::Compiler::new([proto]).unwrap();
    compiler.include_source_info(false).include_imports(true).open_files(FILES).unwrap();
    let reflected = compiler.encode_file_descriptor_set();
    let descriptors = protox::Compiler::new([proto])
        .unwrap()
        .include_source_info(true)
        .include_imports(true)
        .open_files(FILES)
        .unwrap()
        .file_descriptor_set();
    tonic_prost_build::configure()
        .build_client(true)
        .build_server(true)
        .client_mod_attribute(".", "#[cfg(feature = \"client\")]")
        .server_mod_attribute(".", "#[cfg(feature = \"server\")]")
        .codec_path("crate::codec::Compact")
        // What is rare and large must not make what is frequent large.
        .boxed(".tenure.v1.Answer.answer.get")
        .boxed(".tenure.v1.Answer.answer.error")
        .boxed(".tenure.v1.Touched.outcome.error")
        .btree_map(".")
        .bytes(".")
        .out_dir(&out)
        .compile_fds(descriptors)
        .unwrap();
    let code = std::fs::read(out.join("tenure.v1.rs")).unwrap();
    vec![("tenure.v1.rs".into(), code), ("tenure.v1.bin".into(), reflected)]
}
