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
client)
    packages="trainer_client"
    imported="trainer_client, trainer_client.rewards, trainer_client.advantages"
    ;;
service | judge-cpu | judge)
    packages="trainer_client rubric_store judge_server services"
    imported="adjudge_services.cli.operating.serving, adjudge_services.worker, adjudge_services.judge_process"
    ;;
*)
    echo "no such image: $image. There are: client, service, judge-cpu, judge" >&2
    exit 2
    ;;
esac

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fetched="--quiet --disable-pip-version-check --no-compile --require-hashes --only-binary :all: --no-deps"
ours="--quiet --disable-pip-version-check --no-deps --no-index"
pip="$scratch/build/bin/pip --python $venv/bin/python"

"$python" -m venv "$scratch/build"
# shellcheck disable=SC2086 # the options are words
"$scratch/build/bin/pip" install $fetched -r docker/locks/build.txt
for package in $packages; do
    # shellcheck disable=SC2086
    "$scratch/build/bin/pip" wheel $ours --no-build-isolation --wheel-dir "$scratch/wheels" "./$package"
done

if [ "$image" = judge ]; then # vLLM and all that it needs are in the image's own Python
    "$python" -m venv --without-pip --system-site-packages "$venv"
else
    "$python" -m venv --without-pip "$venv"
fi
# shellcheck disable=SC2086
$pip install $fetched -r "docker/locks/$image.txt"
# shellcheck disable=SC2086
$pip install $ours --no-compile "$scratch"/wheels/*.whl

# What no process reads is left out: packages' own tests, what other code would be compiled with, stubs, and debug symbols.
# The libraries that wheels bring along (*.libs) stay as they are: their layout was changed after linking, and strip may
# break them. Base images have no strip; the Dockerfile installs it where it builds.
packages_folder=$("$venv/bin/python" -c "import sysconfig; print(sysconfig.get_path('platlib'))")
find "$packages_folder" -type d -name tests -prune -exec rm -rf {} +
find "$packages_folder" -type f \( -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.[ach]' \) -delete
if command -v strip >/dev/null; then
    find "$packages_folder" -type f -name '*.so' -not -path '*.libs/*' -exec strip --strip-unneeded {} +
fi

# Bytecode of what processes import when they start, and not of the rest, which would weigh 100 MB more.
PYTHONDONTWRITEBYTECODE='' "$venv/bin/python" -c "import $imported"

# Of what an image's own Python brings, only what is installed here has to fit: Ubuntu's PyGObject, for one, lacks a
# package that it asks for, and nothing here uses it.
installed=$(sed -n 's/^\([a-z0-9.-]*\)==.*/\1/p' "docker/locks/$image.txt")
$pip check >"$scratch/check" || [ $? = 1 ]
for name in $installed adjudge adjudge-client adjudge-store adjudge-server; do
    if grep "^$name " "$scratch/check"; then
        echo "docker/locks/$image.txt does not fit together: run python docker/lock.py $image" >&2
        exit 1
    fi
done
