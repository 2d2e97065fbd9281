"""Results of tools: text and images within a budget, and the shapes in which model APIs take them."""

import base64
from typing import Final

import msgspec

Json = dict[str, object]

MOST_IMAGE_BYTES: Final = 3_500_000  # five million characters, the most that APIs take, as base64
_SIGNATURES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


class ToolImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image and its type, such as image/png."""

    data: bytes
    media_type: str

    @property
    def base64(self) -> str:
        """The bytes as text."""
        return base64.b64encode(self.data).decode()

    @property
    def data_url(self) -> str:
        """The image as an URL that holds it."""
        return f"data:{self.media_type};base64,{self.base64}"


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a call, for the model; with `is_error` the text says what was wrong and what to do next."""

    text: str
    images: tuple[ToolImage, ...] = ()
    is_error: bool = False

    def anthropic_content(self) -> list[Json]:
        """The content of a `tool_result` block."""
        images: list[Json] = [
            {"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": image.base64}}
            for image in self.images
        ]
        return [{"type": "text", "text": self.text}, *images]

    def openai_content(self) -> list[Json]:
        """The output of a `function_call_output` item."""
        images: list[Json] = [{"type": "input_image", "image_url": image.data_url} for image in self.images]
        return [{"type": "input_text", "text": self.text}, *images]

    def langchain_content(self) -> list[Json]:
        """The content blocks of a ToolMessage."""
        images: list[Json] = [
            {"type": "image", "base64": image.base64, "mime_type": image.media_type} for image in self.images
        ]
        return [{"type": "text", "text": self.text}, *images]


def image_type(data: bytes) -> str | None:
    """Return the type of an image that models can see, by its first bytes; None for anything else."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for signature, kind in _SIGNATURES if data.startswith(signature)), None)


class ToolFailed(Exception):
    """The model asked for something that cannot be done; the message says what to do next."""
