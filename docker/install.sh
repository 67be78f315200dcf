#!/bin/sh
# Makes the virtual environment of an image: docker/install.sh IMAGE VENV [PYTHON]
#
# Run from the root of the repository, by docker/Dockerfile and by the tests. IMAGE names a file of docker/locks/. What
# others wrote comes as wheels whose SHA-256 the lock holds; the packages of this repository are built here.
set -eu
image=$1
venv=$2
python=${3:-python3}

case $image in
client) packages="trainer_client" ;;
service | judge-cpu | judge) packages="trainer_client rubric_store judge_server services" ;;
*)
    echo "no such image: $image. There are: client, service, judge-cpu, judge" >&2
    exit 2
    ;;
esac

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fetched="--quiet --disable-pip-version-check --require-hashes --only-binary :all: --no-deps"
ours="--quiet --disable-pip-version-check --no-deps --no-index"

"$python" -m venv "$scratch/build"
# shellcheck disable=SC2086 # the options are words
"$scratch/build/bin/pip" install $fetched -r docker/locks/build.txt
for package in $packages; do
    # shellcheck disable=SC2086
    "$scratch/build/bin/pip" wheel $ours --no-build-isolation --wheel-dir "$scratch/wheels" "./$package"
done

if [ "$image" = judge ]; then # vLLM and all that it needs are in the image's own Python
    "$python" -m venv --system-site-packages "$venv"
else
    "$python" -m venv "$venv"
fi
# shellcheck disable=SC2086
"$venv/bin/pip" install $fetched -r "docker/locks/$image.txt"
# shellcheck disable=SC2086
"$venv/bin/pip" install $ours "$scratch"/wheels/*.whl
"$venv/bin/pip" check
