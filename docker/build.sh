#!/bin/sh
# Builds images: docker/build.sh IMAGE...
#
# IMAGE is a target of docker/Dockerfile: api, worker, client, judge-cpu, judge. It uses docker if a daemon answers, else
# buildah; BUILDER=buildah or BUILDER=podman chooses. PYTHON_IMAGE and VLLM_IMAGE name other base images, such as copies in
# a registry of your own, or digests. Each image also gets the name under which the chart looks for it in REGISTRY.
set -eu
cd "$(dirname "$0")/.."
builder=${BUILDER:-}
registry=${REGISTRY:-ghcr.io/adjudge} # as images.registry in helm/adjudge/values.yaml
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' services/pyproject.toml)

if [ -z "$builder" ]; then
    if command -v docker >/dev/null && docker version >/dev/null 2>&1; then
        builder=docker
    elif command -v buildah >/dev/null; then
        builder=buildah
    else
        echo "no daemon of docker answers, and buildah is not installed: install one of the two" >&2
        exit 1
    fi
fi
case $builder in
docker) build="docker build" ;;
# Images in the OCI format have no health check.
*) build="$builder build --layers --format docker --ignorefile docker/Dockerfile.dockerignore" ;;
esac

bases=""
[ -z "${PYTHON_IMAGE:-}" ] || bases="$bases --build-arg PYTHON_IMAGE=$PYTHON_IMAGE"
[ -z "${VLLM_IMAGE:-}" ] || bases="$bases --build-arg VLLM_IMAGE=$VLLM_IMAGE"

for image in "$@"; do
    echo "building adjudge-$image:$version with ${build%% *}"
    # shellcheck disable=SC2086 # the options are words
    $build $bases --file docker/Dockerfile --target "$image" \
        --tag "adjudge-$image:$version" --tag "$registry/adjudge-$image:$version" .
done
