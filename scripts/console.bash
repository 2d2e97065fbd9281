#!/usr/bin/env bash
# console.bash [--if-possible]    Builds the web console from console/ into the package.
#
# With --if-possible a machine without Node.js is left without a console, and told so.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v npm >/dev/null || ! node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)'; then
    echo "The web console is not built: that needs Node.js 20 or newer and npm." >&2
    [ "${1:-}" = --if-possible ]
    exit
fi
cd console
if [ ! -e node_modules/.package-lock.json ] || [ package-lock.json -nt node_modules/.package-lock.json ]; then
    npm ci --no-audit --no-fund --loglevel=error </dev/null
    touch node_modules/.package-lock.json
fi
node build.mjs
