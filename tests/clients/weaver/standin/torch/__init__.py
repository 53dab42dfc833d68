"""Just enough of `torch` for the training SDK to build its requests: typed arrays over numpy.

The SDK imports torch for the tensors of a datum; no gradient is taken here, so its custom losses need the real package.
"""
import numpy

__version__ = "0+standin"


class dtype:
    def __init__(self, name):
        self.name, self.array = name, numpy.dtype(name)

    @property
    def is_floating_point(self):
        return self.array.kind == "f"

    def __repr__(self):
        return f"torch.{self.name}"


_all = {name: dtype(name) for name in ("int8", "int16", "int32", "int64", "uint8", "bool", "float16", "float32", "float64")}
globals().update(_all)


class Tensor:
    """An array that knows its torch type; the few methods that are asked of it."""

    def __init__(self, array):
        self.array = array

    @property
    def dtype(self):
        return _all[self.array.dtype.name]

    @property
    def shape(self):
        return tuple(self.array.shape)

    @property
    def ndim(self):
        return self.array.ndim

    def to(self, dtype=None):
        return Tensor(self.array.astype(dtype.array)) if dtype else self

    def _same(self):
        return self

    detach = cpu = contiguous = clone = _same

    def numpy(self):
        return numpy.ascontiguousarray(self.array)

    def tolist(self):
        return self.array.tolist()

    def item(self):
        return self.array.item()

    def element_size(self):
        return self.array.itemsize

    def reshape(self, *shape):
        return Tensor(self.array.reshape(*shape))

    def __len__(self):
        return len(self.array)

    def __iter__(self):
        return iter(Tensor(numpy.asarray(x)) for x in self.array)

    def __float__(self):
        return float(self.array)


def as_tensor(values, dtype=None):
    if isinstance(values, Tensor):
        return values.to(dtype=dtype)
    array = numpy.asarray(values, dtype=dtype.array if dtype else None)
    return Tensor(array.astype("float32") if dtype is None and array.dtype == numpy.float64 else array)


tensor = as_tensor


def empty(shape, dtype=None):
    return Tensor(numpy.empty(shape, dtype=dtype.array if dtype else "float32"))


def frombuffer(data, dtype):
    return Tensor(numpy.frombuffer(data, dtype=dtype.array))


def is_tensor(value):
    return isinstance(value, Tensor)
