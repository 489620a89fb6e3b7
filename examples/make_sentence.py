"""Make sentence.npz: four heads of attention over one sentence of "The House that Jack Built".

Nothing is trained and nothing is random: the words are known by the company they keep in text.txt,
the nursery rhyme (printed in 1755), and each head asks something else of it.

0. before: which word stands right before me?
1. alike: which words are used as I am? (tossed, worried, killed, ate; dog, cat, rat, malt)
2. beside: which words stand next to me somewhere in the rhyme? (killed: cat and rat)
3. alike and near: which words that are used as I am are close to me?

query and key are (4, 32, 16): heads, words, D. value is (4, 32, 4): a quarter of a word's vector.
"""

import re
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent
SENTENCE = (
    "This is the cow with the crumpled horn that tossed the dog that worried the cat that killed "
    "the rat that ate the malt that lay in the house that Jack built"
)
D = 16
DIGITS = 4  # so few that the last bits of a machine's linear algebra do not show


def words_of(text):
    return re.findall("[a-z]+", text.lower())


def followers(words, vocabulary, distance):
    """Count how often the word of each column stands `distance` words after that of each row."""
    number = {word: n for n, word in enumerate(vocabulary)}
    walk = [number[word] for word in words]
    counts = np.zeros((len(vocabulary), len(vocabulary)))
    np.add.at(counts, (walk[:-distance], walk[distance:]), 1)
    return counts


def information(counts):
    """Return the positive pointwise mutual information: how far above chance, in nats."""
    chance = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / counts.sum()
    return np.log(np.maximum(counts / chance, 1))


def factors(symmetric, size):
    """Return q and k, (words, size), whose products q @ k.T come closest to a symmetric matrix."""
    values, vectors = np.linalg.eigh(symmetric)
    largest = np.argsort(-abs(values))[:size]
    values, vectors = values[largest], vectors[:, largest]
    peaks = np.take_along_axis(vectors, abs(vectors).argmax(axis=0)[None], axis=0)
    q = vectors * np.sign(peaks) * np.sqrt(abs(values))  # an eigenvector has no sign: fix one
    return q, q * np.sign(values)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def places(numbers, size):
    """Return sines and cosines of positions, as in section 3.5 of "Attention Is All You Need"."""
    angles = np.outer(numbers, 100.0 ** -np.linspace(0, 1, size // 2))
    return unit(np.concatenate([np.sin(angles), np.cos(angles)], axis=-1))


def make():
    """Return the arrays query, key and value."""
    rhyme, sentence = words_of((FOLDER / "text.txt").read_text()), words_of(SENTENCE)
    vocabulary = sorted(set(rhyme))
    known = sorted(set(sentence))
    chosen = [vocabulary.index(word) for word in known]
    rows = [known.index(word) for word in sentence]
    next_, second = (followers(rhyme, vocabulary, distance) for distance in (1, 2))

    company = np.log1p(np.hstack([next_, next_.T, second, second.T]))[chosen]
    alike = unit(factors(company @ company.T, D)[0])[rows]
    rough = unit(factors(company @ company.T, D // 2)[0])[rows]
    shared = information(next_ + next_.T + second + second.T)[np.ix_(chosen, chosen)]
    beside = [x[rows] for x in factors(shared, D)]
    here = np.arange(len(rows))
    near = places(here, D // 2)

    query = [30 * places(here - 1, D), 8 * alike, 2.5 * beside[0], np.hstack([8 * rough, 5 * near])]
    key = [places(here, D), alike, beside[1], np.hstack([rough, near])]
    arrays = {
        "query": np.sqrt(D) * np.stack(query),  # undoes the scale: the factors above are meant
        "key": np.stack(key),
        "value": np.stack(np.split(alike, 4, axis=-1)),
    }
    return {name: (x.round(DIGITS) + 0.0).astype(np.float32) for name, x in arrays.items()}


if __name__ == "__main__":
    np.savez_compressed(FOLDER / "sentence.npz", **make())
