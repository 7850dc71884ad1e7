//! The description of the interface is the committed one.

use super::*;
use crate::http::routes::openapi;

/// `UPDATE=1 cargo test -p salaam --lib http` writes it anew.
#[test]
fn the_committed_description_is_the_served_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/openapi.json");
    let served = openapi();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &served).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == served, "docs/openapi.json is not what is served; run the test with UPDATE=1 and commit it");
}

#[test]
fn every_reference_in_the_description_leads_somewhere() {
    let contract: Value = serde_json::from_str(&openapi()).unwrap();
    let mut open = vec![&contract];
    let mut references = 0;
    while let Some(value) = open.pop() {
        match value {
            Value::Object(map) => {
                if let Some(Value::String(target)) = map.get("$ref") {
                    references += 1;
                    assert!(contract.pointer(target.trim_start_matches('#')).is_some(), "{target} leads nowhere");
                }
                open.extend(map.values());
            }
            Value::Array(list) => open.extend(list),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    assert!(references > 20);
}

#[test]
fn no_two_verbs_share_a_place() {
    // Building the router panics where they do.
    assert!(crate::http::routes::verbs(Duration::ZERO).has_routes());
}

#[test]
fn every_verb_is_described() {
    let contract: Value = serde_json::from_str(&openapi()).unwrap();
    let mut verbs: Vec<String> = Vec::new();
    for (path, methods) in contract["paths"].as_object().unwrap() {
        verbs.extend(methods.as_object().unwrap().keys().map(|method| format!("{} {path}", method.to_uppercase())));
    }
    verbs.sort();
    assert_eq!(
        verbs,
        [
            "DELETE /v1/workspaces/{id}",
            "GET /v1/approvals",
            "GET /v1/approvals/{id}",
            "GET /v1/events",
            "GET /v1/health",
            "GET /v1/metrics",
            "GET /v1/openapi.json",
            "GET /v1/operations",
            "GET /v1/operations/{id}",
            "GET /v1/operations/{id}/output",
            "GET /v1/probes",
            "GET /v1/sessions",
            "GET /v1/sessions/{id}",
            "GET /v1/workspaces",
            "GET /v1/workspaces/{id}",
            "POST /v1/approvals/{id}/deny",
            "POST /v1/approvals/{id}/grant",
            "POST /v1/drain",
            "POST /v1/operations",
            "POST /v1/operations/{id}/cancel",
            "POST /v1/probes",
            "POST /v1/sessions",
            "POST /v1/sessions/{id}/cancel",
            "POST /v1/sessions/{id}/message",
            "POST /v1/sessions/{id}/reconcile",
            "POST /v1/sessions/{id}/undo",
            "POST /v1/workspaces",
        ]
    );
}

#[test]
fn operation_ids_are_unique() {
    let contract: Value = serde_json::from_str(&openapi()).unwrap();
    let methods = contract["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap().values());
    let ids: Vec<_> = methods.map(|method| method["operationId"].as_str().unwrap()).collect();
    let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len(), "{ids:?}");
}
