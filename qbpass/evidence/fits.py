"""Whether prompts fit a bundle, asked before the first of them is run."""

from __future__ import annotations

from collections.abc import Sequence

from qbpass.evidence.prompts import Prompt
from qbpass.models.errors import PromptError
from qbpass.rewrites.manifest import Manifest


def check_fit(prompts: Sequence[Prompt], manifest: Manifest) -> None:
    """Raises PromptError for the first prompt that is too long for the context or has a token the vocabulary lacks."""
    context, vocabulary = manifest.context_length, manifest.interface.vocab_size
    for prompt in prompts:
        if context is not None and len(prompt.token_ids) >= context:
            raise PromptError(
                f"prompt {prompt.id!r} has {len(prompt.token_ids)} tokens, the model's context {context}: shorten it"
            )
        beyond = next((token for token in prompt.token_ids if token >= vocabulary), None)
        if beyond is not None:
            raise PromptError(
                f"prompt {prompt.id!r} has token id {beyond}, outside the vocabulary of {vocabulary}: "
                "is it for this model's tokenizer?"
            )
