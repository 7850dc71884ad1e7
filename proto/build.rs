//! Compiles the contracts with protox: no protoc is needed.

use std::{env, error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["bridge.proto"], ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("bridge.bin"), protox::prost::Message::encode_to_vec(&descriptors))?;
    let mut config = tonic_prost_build::Config::new();
    config.bytes(["."]);
    tonic_prost_build::configure().compile_fds_with_config(descriptors, config)?;
    for local in ["worker.proto", "reader.proto"] {
        let mut config = tonic_prost_build::Config::new();
        config.bytes(["."]);
        let descriptors = protox::compile([local], ["proto"])?;
        tonic_prost_build::configure().compile_fds_with_config(descriptors, config)?;
    }
    Ok(())
}
