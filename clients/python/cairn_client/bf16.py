"""BF16 is the upper half of float32; numpy has no such type, so its bits travel as uint16."""
import numpy as np


def to_float32(bits):
    """float32 values of an array of BF16 bits (exact)."""
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)


def from_float32(values):
    """BF16 bits of float32 values, rounded to nearest, ties to even. Infinities stay; a NaN stays a (quiet) NaN."""
    values = np.array(values, np.float32, order="C", copy=True)
    bits = values.view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    nan = np.isnan(values)
    if nan.any():
        rounded[nan] = ((bits[nan] >> 16) | 0x40).astype(np.uint16)
    return rounded
