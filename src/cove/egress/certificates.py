"""A certificate authority of one sandbox: it signs for the names that its policy intercepts, and for nothing else.

Its key is in a file that the runtime opens and only this process reads. The authority may sign no other authority
(path length 0), lives for a short time, and is constrained to the intercepted names: inside and outside it is good for
nothing that the policy does not say.
"""

import os
import ssl
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE = timedelta(days=30)
_LEEWAY = timedelta(hours=1)
_MOST_LEAVES = 256
_MOST_KEY_BYTES = 4096


class Authority:
    """Signs for `names`, which are host names or `*.name`."""

    def __init__(self, key_file: int, names: Sequence[str]) -> None:
        self._key = _load_or_make_key(key_file)
        self._names = names
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Cove sandbox")])
        self._certificate = self._sign_itself()
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._contexts: OrderedDict[str, ssl.SSLContext] = OrderedDict()

    @property
    def certificate(self) -> str:
        """PEM text, for those who are to trust it."""
        return self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    def context_for(self, name: str) -> ssl.SSLContext:
        """A server's side of TLS for that name, HTTP/1.1 only; a client that names another is refused."""
        if (known := self._contexts.get(name)) is not None:
            self._contexts.move_to_end(name)
            return known
        context = self._contexts[name] = self._make_context(name)
        if len(self._contexts) > _MOST_LEAVES:
            self._contexts.popitem(last=False)
        return context

    def _make_context(self, name: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        # The module loads keys from files only.
        with tempfile.TemporaryDirectory(prefix="cove-", dir="/dev/shm") as directory:
            path = os.path.join(directory, "leaf.pem")
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(_encode_key(self._leaf_key) + self._sign(name).public_bytes(serialization.Encoding.PEM))
            context.load_cert_chain(path)

        def check_name(_: ssl.SSLObject, asked: str | None, __: ssl.SSLContext) -> int | None:
            return None if asked is not None and asked.lower() == name else int(ssl.ALERT_DESCRIPTION_ACCESS_DENIED)

        context.sni_callback = check_name
        return context

    def _sign_itself(self) -> x509.Certificate:
        permitted = [x509.DNSName(name.removeprefix("*.")) for name in self._names]
        return (
            self._builder(self._subject, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.NameConstraints(permitted or [x509.DNSName("invalid")], None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _sign(self, name: str) -> x509.Certificate:
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            self._builder(x509.Name([]), self._leaf_key.public_key())
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._leaf_key.public_key()), critical=False)
            .add_extension(authority, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _LEEWAY)
            .not_valid_after(now + _LIFE)
        )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _encode_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _load_or_make_key(file: int) -> ec.EllipticCurvePrivateKey:
    """The key that the file has, or a new one that is then in it."""
    known = os.pread(file, _MOST_KEY_BYTES, 0)
    if known:
        key = serialization.load_pem_private_key(known, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return key
    made = ec.generate_private_key(ec.SECP256R1())
    os.pwrite(file, _encode_key(made), 0)
    os.fsync(file)
    return made
