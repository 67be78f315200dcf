#!/bin/sh
# Writes docker/.env: docker/.env.example, with a new random value for each secret that is empty there.
#
# A file that exists stays as it is, since its secrets are those of the data.
set -eu
cd "$(dirname "$0")"
if [ -e .env ]; then
    echo "docker/.env exists, and stays as it is"
    exit 0
fi

random() {
    od -An -v -N"${1:-32}" -tx1 /dev/urandom | tr -d ' \n'
}

# adj_, 16 characters of a-z and 2-7, and a secret of 43: what `adjudge migrate` takes for a key.
key() {
    echo "adj_$(random 64 | tr -dc a-f2-7 | cut -c1-16)_$(random | cut -c1-43)"
}

umask 077
while IFS= read -r line; do
    case $line in
    POSTGRES_PASSWORD= | VALKEY_PASSWORD= | ADJUDGE_SIGNING_SECRET= | ADJUDGE_JUDGE_TOKEN= | GRAFANA_PASSWORD=)
        echo "$line$(random)"
        ;;
    ADJUDGE_BOOTSTRAP_KEY=) echo "$line$(key)" ;;
    *) echo "$line" ;;
    esac
done <.env.example >.env.new
mv .env.new .env
echo "wrote docker/.env, with new secrets"
