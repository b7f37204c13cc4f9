//! `tenure token`: a new token for `tenure serve --token-file`.

use std::io::Write as _;
use std::process::ExitCode;

use tenure::random::SystemRandom;
use tenure_server::auth::tokens;

use crate::output::print;

/// Make a token, and the lines that let it in.
///
/// The token itself is printed once and kept nowhere: the file that `tenure serve --token-file` reads has
/// only its hash.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Whose token it is, for logs.
    name: String,
    /// The tenant that it belongs to.
    #[arg(long)]
    tenant: Option<String>,
    /// What it may do, for instance `leases:hold:billing.*` or `objects:read:order/*`; may be given several
    /// times.
    ///
    /// ACTION:RESOURCE, or `*` for everything. leases:hold, leases:read and leases:revoke name a scope,
    /// slots:resize a group, objects:read and objects:write KIND/ID; server:observe, for metrics, names
    /// nothing. A resource may end in `*`.
    #[arg(long = "may", value_name = "PERMISSION", required = true)]
    may: Vec<String>,
}

impl Arguments {
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        tokens::check(&self.name, self.tenant.as_deref())?;
        tenure_server::auth::Permissions::parse(&self.may)?;
        let (token, sha256) = tokens::mint(&*SystemRandom::shared());
        // What JSON puts in quotes, TOML reads alike.
        let quoted = |text: &String| serde_json::Value::from(text.as_str()).to_string();
        let may: Vec<String> = self.may.iter().map(quoted).collect();
        // The only time that it is told: not being heard is a failure.
        writeln!(
            std::io::stderr(),
            "tenure: give this token to {}; it is not shown again:\n\n{token}\n\n\
             tenure: and add these lines to the file of `tenure serve --token-file`:\n",
            self.name
        )?;
        let tenant = self.tenant.as_ref().map(|tenant| format!("tenant = {}\n", quoted(tenant)));
        print(format_args!(
            "[[token]]\nname = {}\nsha256 = \"{sha256}\"\n{}permissions = [{}]",
            quoted(&self.name),
            tenant.unwrap_or_default(),
            may.join(", ")
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}
