#!/usr/bin/env bash
# What a real cluster makes of the chart: install, run, test, change, upgrade, take away. NOT RUN HERE: no control plane could be had where
# this was written (docs/kubernetes.md says what was). Run it where Docker, kind, kubectl and Helm 3.16 or later are; it takes some ten
# minutes, makes a cluster of its own, and ends it. Each step says what is expected, and ends the script where something else happens.
#
#   k8s/check.sh [IMAGE]      hermes-worker:0.2.0 unless one is named; it has to be built before
set -euo pipefail

image=${1:-hermes-worker:0.2.0}
cluster=hermes-check
chart=$(cd "$(dirname "$0")" && pwd)/helm/hermes-worker
work=$(mktemp -d)
trap 'kind delete cluster --name "$cluster" >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
export KUBECONFIG=$work/kubeconfig

step() { printf '\n== %s\n' "$1"; }
expect() { # expect WHAT PATTERN: the last output has it
    grep -Eq "$2" "$work/said" || { printf 'Expected %s (%s), and got:\n' "$1" "$2"; cat "$work/said"; exit 1; }
    printf 'ok: %s\n' "$1"
}
said() { "$@" >"$work/said" 2>&1 || true; }
in_namespace() { kubectl --namespace hermes "$@"; }
install() { # install RELEASE [ARGUMENT...]
    local release=$1
    shift
    helm upgrade --install "$release" "$chart" --namespace hermes --values "$chart/values-dev.yaml" --set namespace.create=false \
        --set migrate.jobName= --set image.repository="${image%:*}" --set image.tag="${image##*:}" --wait --timeout 5m "$@"
}

step "A cluster with Pod Security"
kind create cluster --name "$cluster" --wait 3m
kind load docker-image --name "$cluster" "$image"
kubectl create namespace hermes
kubectl label namespace hermes pod-security.kubernetes.io/enforce=restricted

step "A mistake is refused before anything is made"
said install hermes --set worker.model.replicas=3
expect "the name that is not known, and the nearest" "worker is no value of the chart; did you mean workers"
said install hermes --set settings.HERMES_API_KEY=sk-1
expect "a secret under settings" "settings.HERMES_API_KEY is a secret"

step "Install"
install hermes
said in_namespace get pods --no-headers
expect "pods of five roles" "hermes-worker-tools.*1/1.*Running"
said in_namespace get jobs --no-headers
expect "a migration that ended" "hermes-migrate-[0-9a-f]{10} .*(Complete|1/1)"
said in_namespace get pods --output jsonpath='{range .items[*]}{.metadata.labels.app\.kubernetes\.io/component}={.spec.volumes[?(@.persistentVolumeClaim)].name}{"\n"}{end}'
expect "no volume for the API" "^api=$"
expect "the volume for tools workers" "^worker-tools=home$"

step "helm test"
said helm test hermes --namespace hermes --logs
expect "an API that answers" "/health/ready 200"
expect "a test that succeeded" "Phase: +Succeeded"

step "A run"
said in_namespace exec deploy/hermes-worker-model -- hermes-worker doctor
expect "a doctor that finds workers" "consuming"

step "A changed setting replaces pods"
before=$(in_namespace get pods --selector app.kubernetes.io/component=api --output name)
install hermes --set settings.HERMES_MODEL=another-model
after=$(in_namespace get pods --selector app.kubernetes.io/component=api --field-selector status.phase=Running --output name)
[ "$before" != "$after" ] || { echo "Expected other pods of the API"; exit 1; }
echo "ok: other pods of the API"

step "The same version from another registry: the job has another name"
docker tag "$image" registry.example.com/again:"${image##*:}"
kind load docker-image --name "$cluster" registry.example.com/again:"${image##*:}"
install hermes --set image.repository=registry.example.com/again
said in_namespace get jobs --no-headers
expect "two jobs, or the second alone" "hermes-migrate-[0-9a-f]{10}"

step "A second release beside it"
install second --set priorityClasses.create=false --set priorityClasses.control=hermes-control --set priorityClasses.work=hermes-work \
    --set secrets.state.database-url=postgresql://hermes:dev@second-postgres:5432/hermes \
    --set secrets.state.broker-url=redis://:dev@second-valkey:6379/0
said in_namespace get deployments --no-headers
expect "the first" "^hermes-api "
expect "the second" "^second-api "

step "Take it away"
helm uninstall second hermes --namespace hermes --wait
said in_namespace get pods --no-headers
expect "no pod" "No resources found"
