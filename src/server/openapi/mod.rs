//! `/openapi.json`: what the server takes and gives, generated from types.
//!
//! Requests are read by hand elsewhere (`fields`), so that an error can name the field, and many replies are put together from
//! parts; the types here mirror both, and the tests hold them to it: every property of a request is sent with wrong values,
//! and real replies are compared with their schemas. `endpoints` is the list of routes, `requests` and `replies` have the
//! types by topic.

mod endpoints;
mod replies;
mod requests;

use std::sync::LazyLock;

use axum::{Router, routing::get};
use utoipa::openapi::{
    ComponentsBuilder, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder,
    security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
};

use super::{extract::ApiJson, state::AppState};

pub fn routes() -> Router<AppState> {
    Router::new().route("/openapi.json", get(show))
}

async fn show() -> ApiJson<&'static OpenApi> {
    static DOCUMENT: LazyLock<OpenApi> = LazyLock::new(document);
    ApiJson(&DOCUMENT)
}

/// The whole document.
fn document() -> OpenApi {
    let mut schemas = Vec::new();
    requests::collect(&mut schemas);
    replies::collect(&mut schemas);
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    let components = ComponentsBuilder::new()
        .schemas_from_iter(schemas)
        .security_scheme("bearer", SecurityScheme::Http(bearer))
        .security_scheme("x-api-key", SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new("X-Api-Key"))))
        .build();
    let license = LicenseBuilder::new().name("MIT OR Apache-2.0").build();
    OpenApiBuilder::new()
        .info(
            InfoBuilder::new()
                .title("onebit")
                .version(env!("CARGO_PKG_VERSION"))
                .description(Some(
                    "Unknown fields of a request are ignored, and null is the same as a field that is missing. Errors are \
                     JSON, before a stream opens with their status, later as the stream's last event.",
                ))
                .license(Some(license))
                .build(),
        )
        .paths(endpoints::paths())
        .components(Some(components))
        // A server without keys asks for none.
        .security(Some([
            SecurityRequirement::default(),
            SecurityRequirement::new("bearer", Vec::<String>::new()),
            SecurityRequirement::new("x-api-key", Vec::<String>::new()),
        ]))
        .build()
}

/// A schema with its name.
type Named = (String, utoipa::openapi::RefOr<utoipa::openapi::Schema>);

/// Adds a type and those that it mentions.
fn add<T: utoipa::ToSchema>(schemas: &mut Vec<Named>) {
    T::schemas(schemas);
    schemas.push((T::name().into_owned(), T::schema()));
}

#[cfg(test)]
mod tests;
