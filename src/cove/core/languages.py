"""Languages of code contexts."""

from cove.errors import UnsupportedLanguage

LANGUAGES = ("python", "javascript", "typescript")


def check_language(language: str) -> str:
    """Return the language, or raise UnsupportedLanguage with the list."""
    if language not in LANGUAGES:
        raise UnsupportedLanguage(
            f"language {language!r} is not supported: use one of {', '.join(LANGUAGES)}", supported=list(LANGUAGES)
        )
    return language
