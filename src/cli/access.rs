//! Who may use the server: flags to the settings of its guard.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::server::{ApiKeys, Hosts, Origins, ServerConfig};

use super::Failure;

#[derive(Debug, Args)]
#[command(next_help_heading = "Access")]
pub struct AccessArgs {
    /// Key that requests must carry; /health needs none (repeatable, or separated by commas)
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    pub api_key: Vec<String>,

    /// File with such keys, one a line; a line that begins with # is a comment (repeatable)
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Vec<PathBuf>,

    /// Origin whose web pages may use the server, such as https://chat.example, or * for all; pages of this machine may
    /// (repeatable, or separated by commas)
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',')]
    pub cors_origin: Vec<String>,

    /// Name under which the server may be called though it listens for this machine only, as behind a proxy (repeatable, or
    /// separated by commas)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub allowed_host: Vec<String>,

    /// Most MiB of a request's body
    #[arg(long, value_name = "MIB", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub body_limit: u32,
}

/// Puts the flags into the settings of a server that listens on `address`.
pub fn apply(args: &AccessArgs, address: SocketAddr, config: &mut ServerConfig) -> Result<(), Failure> {
    config.hosts = Hosts::for_address(address.ip(), args.allowed_host.clone());
    config.origins =
        Origins::new(args.cors_origin.clone()).map_err(|err| Failure::usage(format!("--cors-origin: {err}")))?;
    config.api_keys = keys(args)?;
    config.body_limit = (args.body_limit as usize) << 20;
    Ok(())
}

/// What the operator should know about a server without keys that other machines reach.
pub fn warning(config: &ServerConfig, address: SocketAddr) -> Option<String> {
    let is_open = config.api_keys.is_empty() && !address.ip().to_canonical().is_loopback();
    is_open.then(|| {
        format!(
            "warning: everybody who reaches {address} can use this server: give it an --api-key, or --host 127.0.0.1 for \
             this machine alone"
        )
    })
}

/// A flag that names no key is a mistake: the server would be open to all.
fn keys(args: &AccessArgs) -> Result<ApiKeys, Failure> {
    if args.api_key.iter().any(|key| key.trim().is_empty()) {
        return Err(Failure::usage("--api-key: the key is empty"));
    }
    let mut keys = args.api_key.clone();
    for path in &args.api_key_file {
        let from_file =
            read(path).map_err(|reason| Failure::usage(format!("--api-key-file {}: {reason}", path.display())));
        keys.extend(from_file?);
    }
    Ok(ApiKeys::new(keys))
}

fn read(path: &Path) -> Result<Vec<String>, String> {
    let text = std::fs::read_to_string(path).map_err(|err| err.to_string())?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let keys: Vec<String> = lines.map(str::to_owned).collect();
    if keys.is_empty() { Err("there is no key in it".to_owned()) } else { Ok(keys) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        access: AccessArgs,
    }

    fn config(address: &str, flags: &[&str]) -> Result<(ServerConfig, Option<String>), String> {
        let line = Line::try_parse_from([&["onebit"], flags].concat()).unwrap();
        let (address, mut config) = (address.parse().unwrap(), ServerConfig::default());
        apply(&line.access, address, &mut config).map_err(|failure| failure.message)?;
        let warning = warning(&config, address);
        Ok((config, warning))
    }

    #[test]
    fn an_open_server_warns() {
        assert!(config("127.0.0.1:80", &[]).unwrap().1.is_none());
        assert!(config("[::1]:80", &[]).unwrap().1.is_none());
        assert!(config("0.0.0.0:80", &[]).unwrap().1.unwrap().contains("--api-key"));
        assert!(config("10.0.0.1:80", &["--api-key", "k"]).unwrap().1.is_none());
    }

    #[test]
    fn keys_come_from_flags_and_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let good = path("good", "# a comment\n\n  k1  \nk2\n");
        let (config_, _) =
            config("127.0.0.1:80", &["--api-key", "a,b", "--api-key", "c", "--api-key-file", &good]).unwrap();
        assert_eq!(format!("{:?}", config_.api_keys), "ApiKeys(5 keys)");
        for flags in [
            &["--api-key", ""][..],
            &["--api-key", "a,,b"],
            &["--api-key-file", &path("empty", "# nothing\n")],
            &["--api-key-file", "/nowhere/to/be/found"],
            &["--cors-origin", "chat.example"],
        ] {
            let message = config("127.0.0.1:80", flags).expect_err("refused");
            assert!(message.starts_with(flags[0]), "{message}");
        }
    }
}
