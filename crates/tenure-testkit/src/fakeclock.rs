//! A wall clock for one server alone, which a test can step. Its steady clocks stay true, as they do
//! when an operator or a time daemon steps a real one.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::install;

#[derive(Debug)]
pub(crate) struct FakeClock {
    library: PathBuf,
    file: PathBuf,
    offset_seconds: i64,
}

impl FakeClock {
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        let library = install::faketime_library()?;
        let mut clock = Self { library, file: folder.join("clock"), offset_seconds: 0 };
        clock.step(0)?;
        Ok(clock)
    }

    pub(crate) fn apply(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", &self.library)
            .env("FAKETIME_TIMESTAMP_FILE", &self.file)
            .env("FAKETIME_NO_CACHE", "1")
            .env("DONT_FAKE_MONOTONIC", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }

    pub(crate) fn step(&mut self, by_seconds: i64) -> Result<()> {
        self.offset_seconds += by_seconds;
        // Renamed into place: the server reads the file at every look at the clock.
        let next = self.file.with_extension("next");
        std::fs::write(&next, format!("{:+}s\n", self.offset_seconds))
            .and_then(|()| std::fs::rename(&next, &self.file))
            .with_context(|| format!("stepping the clock in {}", self.file.display()))
    }
}
