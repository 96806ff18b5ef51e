"""Make the embedded model: `python tools/make_tiny.py [--out FOLDER]`, 45 seconds on one core.

A Llama of 156,000 parameters and a byte-level BPE of 768 tokens, in which digits stand alone, learn
60,000 synthetic mails (`raydp.tasks.text.mails`): 60 % about a public directory of 300 people whose
facts never change, 40 % about people met once with facts drawn at random. The directory is what
teaches the model to look a fact up by a name; without it, differentially private fine-tuning
memorises nothing at this size. One pass, one thread, everything from one seed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from raydp.tasks.task import batches_by_length
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.mails import Mail, public_mails
from raydp.tasks.text.token_loss import IGNORE, token_nll

TINY = Path(__file__).parents[1] / "raydp" / "data" / "tiny"
RECORD = "made_by.json"
END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the model is pre-trained.

    Attributes:
        num_mails: training mails, each seen once.
        num_heldout: mails of the same kind for the reported loss.
        batch_size: mails in one update; larger batches leave too few updates to learn the
            directory.
        learning_rate: peak of AdamW's rate: warm-up over 100 updates, then linear decay to 5 % of
            it.
        seed: decides mails and initial weights.
    """

    num_mails: int = 60_000
    num_heldout: int = 1_000
    batch_size: int = 16
    learning_rate: float = 3e-3
    seed: int = 0

    def mails(self) -> tuple[list[Mail], list[Mail]]:
        """Training and held-out mails, which share no person met once."""
        mails = public_mails(self.num_mails + self.num_heldout, self.seed)
        return list(islice(mails, self.num_mails)), list(mails)


def train_tokenizer(mails: Sequence[Mail]) -> PreTrainedTokenizerFast:
    """A byte-level BPE of 768 tokens; a digit is always a token of its own, the end of text has id
    0."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=768,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((mail.text for mail in mails), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=256,
    )


def new_model(vocab_size: int, seed: int) -> LlamaForCausalLM:
    """The untrained model; the seed does not touch torch's global generator."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=256,
        initializer_range=0.05,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def tokenize(tokenizer: PreTrainedTokenizerFast, mails: Sequence[Mail]) -> TokenizedExamples:
    """Whole mails, each with the end of text."""
    ids = tokenizer([mail.text for mail in mails]).input_ids
    return TokenizedExamples.from_lists([[*mail, tokenizer.eos_token_id] for mail in ids])


def pretrain(model: LlamaForCausalLM, examples: TokenizedExamples, recipe: Recipe) -> None:
    """One pass over the examples in their order, in place; reports the loss of every 500th
    batch."""
    num_steps = len(examples) // recipe.batch_size
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 100, max(0.05, 1 - step / num_steps))
    )
    for step in range(num_steps):
        batch = examples.batch(np.arange(step * recipe.batch_size, (step + 1) * recipe.batch_size))
        loss = token_nll(model, batch).sum() / (batch.labels[:, 1:] != IGNORE).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 500 == 0:
            print(
                f"step {step:5d} of {num_steps}: loss {loss.item():.4f} nats per token", flush=True
            )


def mean_nll(model: LlamaForCausalLM, examples: TokenizedExamples) -> float:
    """Nats per target token."""
    with torch.inference_mode():
        batches = (
            examples.batch(indices)
            for indices in batches_by_length(examples.lengths(), max_tokens=4096)
        )
        return (
            sum(float(token_nll(model, batch).sum()) for batch in batches) / examples.num_targets()
        )


def corpus_hash(mails: Sequence[Mail]) -> str:
    """SHA-256 (hex) of the mails: tells whether a checkpoint was made from what the generator
    writes today."""
    return hashlib.sha256("\0".join(mail.text for mail in mails).encode()).hexdigest()


def make(out: Path, recipe: Recipe) -> float:
    """Train tokenizer and model and write them, in fp16, with a record of how they were made.

    Returns:
        The held-out loss of the fp32 weights, nats per token.
    """
    train, heldout = recipe.mails()
    tokenizer = train_tokenizer(train)
    model = new_model(len(tokenizer), recipe.seed)
    pretrain(model, tokenize(tokenizer, train), recipe)
    loss = mean_nll(model, tokenize(tokenizer, heldout))
    model.half().save_pretrained(out)
    tokenizer.save_pretrained(out)
    record = {
        "made_by": "python tools/make_tiny.py",
        "data": "synthetic mails: 60 % about a public directory of 300 people, 40 % about people met once",
        "num_mails": recipe.num_mails,
        "corpus_sha256": corpus_hash(train),
        "batch_size": recipe.batch_size,
        "learning_rate": recipe.learning_rate,
        "seed": recipe.seed,
        "heldout_nll": round(loss, 4),
        "torch": torch.__version__,
    }
    (out / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    for file in out.iterdir():
        file.chmod(
            0o644
        )  # safetensors writes 0600, which an installed package could not be read with
    return loss


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python tools/make_tiny.py", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument(
        "--out", type=Path, default=TINY, help="folder to write to (the package's own by default)"
    )
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--num-mails", type=int, default=Recipe.num_mails)
    parsed = parser.parse_args(arguments)
    torch.set_num_threads(1)  # sums in one order: the same weights again on the same machine
    loss = make(parsed.out, Recipe(seed=parsed.seed, num_mails=parsed.num_mails))
    print(f"held-out loss {loss:.4f} nats per token; written to {parsed.out}")


if __name__ == "__main__":
    main()
