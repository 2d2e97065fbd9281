"""Trust in a sandbox's certificate authority: one bundle of certificates, and the variables that name it."""

BUNDLE = "/etc/ssl/certs/ca-certificates.crt"

# Bundles of certificates that a machine trusts, by distribution, the most common first.
HOST_BUNDLES = (
    BUNDLE,
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
)

# What programs of other distributions read, where an image has it.
OTHER_BUNDLES = HOST_BUNDLES[1:]

# curl, git and Go look at the bundle by themselves; these have stores of their own unless a variable names another.
TRUST_VARIABLES = dict.fromkeys(
    (
        *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "PIP_CERT"),
        *("AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO", "DENO_CERT", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "HTTPLIB2_CA_CERTS"),
    ),
    BUNDLE,
)
