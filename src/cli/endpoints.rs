//! Which endpoints the server has, and under what names.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::engine::Pooling;
use crate::server::ServerConfig;

use super::Failure;

#[derive(Debug, Args)]
#[command(next_help_heading = "Endpoints")]
pub struct EndpointArgs {
    /// Tags of the model in /v1/models, separated by commas
    #[arg(long, value_name = "TAGS", value_delimiter = ',')]
    pub tags: Vec<String>,

    /// Answer on /metrics, for Prometheus
    #[arg(long)]
    pub metrics: bool,

    /// Do not show on /slots what is being worked on
    #[arg(long)]
    pub no_slots: bool,

    /// Do not show a page on /
    #[arg(long)]
    pub no_ui: bool,

    /// Folder for the files of /slots/{id}?action=save and restore
    #[arg(long, value_name = "DIR")]
    pub slot_save_path: Option<PathBuf>,

    /// Serve embeddings
    #[arg(long, alias = "embedding")]
    pub embeddings: bool,

    /// How embeddings are pooled: none, mean, cls, last [default: as the model says]
    #[arg(long, value_name = "HOW")]
    pub pooling: Option<Pooling>,

    /// Seconds after which a silent stream sends a comment; -1 never
    #[arg(long, value_name = "S", default_value_t = 10)]
    pub sse_ping_interval: i64,

    /// Requests that may wait for a slot; one more gets 503 with Retry-After
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub max_queue: usize,
}

/// Long enough to be never.
const NEVER: Duration = Duration::from_secs(60 * 60 * 24 * 365);

/// Puts the flags into the server's settings.
pub fn apply(args: &EndpointArgs, config: &mut ServerConfig) -> Result<(), Failure> {
    config.tags = args.tags.iter().map(|tag| tag.trim().to_owned()).filter(|tag| !tag.is_empty()).collect();
    config.metrics = args.metrics;
    config.slots = !args.no_slots;
    config.page = !args.no_ui;
    if let Some(path) = &args.slot_save_path
        && !path.is_dir()
    {
        return Err(Failure::usage(format!("--slot-save-path {}: there is no such folder", path.display())));
    }
    config.slot_save_path.clone_from(&args.slot_save_path);
    config.keep_alive = match u64::try_from(args.sse_ping_interval) {
        Ok(0) => return Err(Failure::usage("--sse-ping-interval 0: give seconds, or -1 for never")),
        Ok(seconds) => Duration::from_secs(seconds).min(NEVER),
        Err(_) => NEVER,
    };
    config.max_queue = args.max_queue;
    Ok(())
}

/// llama-server's several names in one flag: the first is the model's id, the others are known too.
pub fn names(alias: Option<&str>) -> (Option<String>, Vec<String>) {
    let names = alias.unwrap_or_default().split(',').map(str::trim).filter(|name| !name.is_empty());
    let mut names = names.map(str::to_owned);
    (names.next(), names.collect())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        endpoints: EndpointArgs,
    }

    fn config(flags: &[&str]) -> Result<ServerConfig, String> {
        let line = Line::try_parse_from([&["onebit"], flags].concat()).unwrap();
        let mut config = ServerConfig::default();
        apply(&line.endpoints, &mut config).map(|()| config).map_err(|failure| failure.message)
    }

    #[test]
    fn flags_reach_the_settings() {
        let plain = config(&[]).unwrap();
        assert!(plain.slots && plain.page && !plain.metrics);
        assert_eq!(plain.keep_alive, ServerConfig::default().keep_alive);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let other =
            config(&["--metrics", "--no-slots", "--no-ui", "--tags", "a, b,", "--slot-save-path", path]).unwrap();
        assert!(!other.slots && !other.page && other.metrics);
        assert_eq!(other.tags, ["a", "b"]);
        assert_eq!(other.slot_save_path.as_deref(), Some(folder.path()));
        assert_eq!((plain.max_queue, config(&["--max-queue", "3"]).unwrap().max_queue), (1024, 3));
        assert_eq!(config(&["--sse-ping-interval=-1"]).unwrap().keep_alive, NEVER);
        assert!(config(&["--sse-ping-interval=0"]).unwrap_err().starts_with("--sse-ping-interval 0"));
        assert!(config(&["--slot-save-path", "/no/such/folder"]).unwrap_err().starts_with("--slot-save-path"));
    }

    #[test]
    fn an_alias_may_be_several_names() {
        assert_eq!(names(None), (None, vec![]));
        assert_eq!(names(Some(" a, b ,,c")), (Some("a".into()), vec!["b".into(), "c".into()]));
    }
}
