//! `onebit serve`.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;
use crate::hybrid::{Hybrid, HybridConfig};
use crate::server::{self, AppState, ServerConfig};

use super::args::ServeArgs;
use super::config::{self, Mode};
use super::loading::{self, Stop};
use super::{Failure, access, defaults, endpoints, hrx};

const NAME: &str = "onebit serve";

/// How long a load may take to notice that it is to stop.
const STOP_LOADING: Duration = Duration::from_secs(3);

pub(super) fn main(args: &ServeArgs) -> Result<(), Failure> {
    let mode = Mode::parse(&args.model.device);
    config::refuse(&mode, args)?;
    if let Err(reason) = hrx::prepare(args.model.hrx_libhsa.as_deref()) {
        tracing::warn!("HRX: {reason}");
    }
    if args.print_backend {
        return print_backend(&mode);
    }
    let runtime = tokio::runtime::Runtime::new().map_err(|err| Failure::new(1, format!("cannot start: {err}")))?;
    let result = runtime.block_on(serve(args, mode));
    // A client that never reads would keep its connection's task for ever.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

fn print_backend(mode: &Mode) -> Result<(), Failure> {
    let device = crate::engine::resolve_device(&mode.decode_device()).map_err(Failure::usage)?;
    super::print(&format!("{device}\n"))
}

async fn serve(args: &ServeArgs, mode: Mode) -> Result<(), Failure> {
    let mut engine_config = config::engine_config(&mode, &args.model, &args.hybrid, args.parallel)?;
    engine_config.embeddings = args.endpoints.embeddings;
    engine_config.pooling = args.endpoints.pooling;
    engine_config.prefix_store = args.store.config(mode == Mode::Hybrid);
    let hybrid_config = match mode {
        Mode::Hybrid => Some(config::hybrid_config(&args.model, &args.hybrid)?),
        Mode::Local(_) => None,
    };
    let signal = CancellationToken::new();
    let stop_loading = Stop::default();
    watch_signals(signal.clone(), stop_loading.clone())?;

    let listener = listen(args).await?;
    let address = listener.local_addr().map_err(|err| Failure::new(1, format!("cannot listen: {err}")))?;
    let config = server_config(args, address)?;
    eprintln!("{NAME}: listening on http://{address}");
    if let Some(warning) = access::warning(&config, address) {
        eprintln!("{NAME}: {warning}");
    }
    let state = AppState::new(config);
    let serving = tokio::spawn(server::run(listener, state.clone(), signal.clone().cancelled_owned()));

    let load = tokio::task::spawn_blocking(move || loading::load(NAME, engine_config, &stop_loading, false));
    let loaded = tokio::select! {
        loaded = load => loaded,
        // It looks for the signal while it reads weights; what waits for another machine does not.
        () = async { signal.cancelled().await; tokio::time::sleep(STOP_LOADING).await } => return Ok(()),
    };
    let engine = match loaded.unwrap_or_else(|err| Err(Failure::new(1, format!("loading failed: {err}")))) {
        Ok(engine) => engine,
        // Asked to stop while loading: a normal end.
        Err(_) if signal.is_cancelled() => return Ok(()),
        Err(failure) => return Err(failure),
    };
    if engine.info().generates && !engine.info().has_chat_template {
        eprintln!(
            "{NAME}: the model has no chat template: chat is refused until one is given with --chat-template-file"
        );
    }
    let hybrid = hybrid_config.map(|config| make_hybrid(&engine, config, address)).transpose()?;
    state.set_ready(config::backend(&engine, hybrid.as_ref()));

    let served = serving.await;
    if let Some(hybrid) = hybrid {
        hybrid.close().await;
    }
    let _ = tokio::task::spawn_blocking(move || engine.shutdown()).await;
    match served {
        Ok(Ok(())) => Ok(()),
        Ok(Err(err)) => Err(Failure::new(1, format!("serving failed: {err}"))),
        Err(err) => Err(Failure::new(1, format!("serving failed: {err}"))),
    }
}

fn make_hybrid(engine: &Engine, config: HybridConfig, address: SocketAddr) -> Result<Hybrid, Failure> {
    let hybrid = Hybrid::new(engine.clone(), config).map_err(|err| Failure::new(1, err.to_string()))?;
    hybrid.set_backend_url(backend_url(address));
    Ok(hybrid)
}

/// The address under which a program on this machine reaches us.
fn backend_url(mut address: SocketAddr) -> String {
    if address.ip().is_unspecified() {
        let loopback = match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        };
        address.set_ip(loopback);
    }
    format!("http://{address}")
}

async fn listen(args: &ServeArgs) -> Result<TcpListener, Failure> {
    let bound = TcpListener::bind((args.host.as_str(), args.port)).await;
    bound.map_err(|err| {
        Failure::new(
            1,
            format!("cannot listen on {}:{}: {err} (choose another --host or --port)", args.host, args.port),
        )
    })
}

fn server_config(args: &ServeArgs, address: SocketAddr) -> Result<ServerConfig, Failure> {
    let (alias, other_names) = endpoints::names(args.alias.as_deref());
    let mut config = ServerConfig {
        alias,
        other_names,
        fingerprint: format!("b{}-onebit-{}", crate::llama::build_number(), env!("CARGO_PKG_VERSION")),
        ..ServerConfig::default()
    };
    access::apply(&args.access, address, &mut config)?;
    endpoints::apply(&args.endpoints, &mut config)?;
    defaults::apply(&args.defaults, &mut config)?;
    Ok(config)
}

/// The first SIGINT or SIGTERM asks for an orderly end; a second one ends the process at once.
fn watch_signals(signal: CancellationToken, stop_loading: Stop) -> Result<(), Failure> {
    use tokio::signal::unix::{SignalKind, signal as on};
    let fail = |err| Failure::new(1, format!("cannot watch for signals: {err}"));
    let mut interrupt = on(SignalKind::interrupt()).map_err(fail)?;
    let mut terminate = on(SignalKind::terminate()).map_err(fail)?;
    tokio::spawn(async move {
        for count in 0.. {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if count > 0 {
                std::process::exit(130);
            }
            eprintln!("{NAME}: stopping (at most 10 s; again to stop at once)");
            stop_loading.store(true, Ordering::Relaxed);
            signal.cancel();
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backend_url_is_one_that_a_local_program_can_reach() {
        assert_eq!(backend_url("0.0.0.0:80".parse().unwrap()), "http://127.0.0.1:80");
        assert_eq!(backend_url("[::]:80".parse().unwrap()), "http://[::1]:80");
        assert_eq!(backend_url("10.0.0.1:80".parse().unwrap()), "http://10.0.0.1:80");
    }
}
