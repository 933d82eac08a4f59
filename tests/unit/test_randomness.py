import hashlib
import subprocess
import sys

import numpy as np

from hatdfed.randomness import stream, torch_seed


def test_a_stream_is_a_function_of_its_key_alone():
    np.testing.assert_array_equal(stream(1, "devices", 3).random(4), stream(1, "devices", 3).random(4))


def test_every_part_of_the_key_counts():
    keys = [(1, "a", 0), (2, "a", 0), (1, "b", 0), (1, "a", 1), (1, "a"), (1, "a", "0"), (1, "a", 0, 0)]
    assert len({stream(*key).random() for key in keys}) == len(keys)
    assert len({torch_seed(*key) for key in keys}) == len(keys)


def test_torch_seeds_fit_into_63_bits():
    assert all(0 <= torch_seed(seed, "x") < 2**63 for seed in range(200))


def test_another_process_draws_the_same_numbers():
    code = "from hatdfed.randomness import stream; print(stream(5, 'x', 7).integers(10**9))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(other.stdout) == stream(5, "x", 7).integers(10**9)


def test_a_stream_is_numpys_generator_of_the_128_bit_hash_of_its_key():
    for t in range(20):
        hashed = hashlib.blake2b(f"3\x1fstr:devices\x1fint:{t}".encode(), digest_size=16).digest()
        expected = np.random.Generator(np.random.PCG64DXSM(int.from_bytes(hashed, "little")))
        np.testing.assert_array_equal(stream(3, "devices", t).random(4), expected.random(4))
