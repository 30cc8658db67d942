#!/bin/bash
# Compiles src/headwater/pipelines/java into the small jar that lies beside it: a JRE has no compiler.
set -euo pipefail
cd "$(dirname "$0")/.."
java=src/headwater/pipelines/java
classes=$(mktemp -d)
trap 'rm -rf "$classes"' EXIT
javac --release 17 -Xlint:all,-path,-classfile -cp "$(echo .venv/lib/python3*/site-packages/pyspark/jars)/*" -d "$classes" $java/*.java
jar --create --file $java/headwater.jar --date 2026-01-01T00:00:00Z --no-manifest -C "$classes" .
ls -l $java/headwater.jar
