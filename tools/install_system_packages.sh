#!/usr/bin/env bash
# Installs what the wire and browser tests need and this machine lacks. Needs Debian and root; otherwise it says
# which tests will be skipped and how to get them.
set -euo pipefail

missing=()
command -v kcat >/dev/null || missing+=(kcat)
command -v javac >/dev/null || missing+=(default-jdk-headless)
command -v mvn >/dev/null || missing+=(maven)
# Only the binaries: the package mariadb-server would also set up and start a service.
PATH="$PATH:/usr/sbin" command -v mariadbd >/dev/null ||
  missing+=(mariadb-server-core mariadb-client-core)
# The server's binary without its service: redis-check-rdb is the same file (tests/sinks).
command -v redis-server >/dev/null || command -v redis-check-rdb >/dev/null ||
  missing+=(redis-tools)
command -v chromium >/dev/null || missing+=(chromium)
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
  echo "Installing ${missing[*]} …"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
else
  echo "Not installed: ${missing[*]}. The tests that need them are skipped."
  echo "To run them too: sudo apt-get install ${missing[*]}"
fi
