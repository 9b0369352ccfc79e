"""The same numbers for every engine: a GGUF written anew with all its tensors as f32 or as f16."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter, Keys
from gguf.quants import dequantize

#: What the writer writes by itself.
_OWN_KEYS = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", Keys.General.ARCHITECTURE, Keys.General.FILE_TYPE)
#: llama_ftype of each.
_FILE_TYPES = {np.dtype(np.float32): 0, np.dtype(np.float16): 1}


def rewrite(source: Path, target: Path, dtype: type[np.floating]) -> None:
    """Every tensor of `source` as `dtype` (vectors stay f32, as llama.cpp wants them); metadata as it was."""
    reader = GGUFReader(source)
    partial = target.with_suffix(".partial")
    writer = GGUFWriter(partial, arch=str(reader.fields[Keys.General.ARCHITECTURE].contents()))
    writer.add_file_type(_FILE_TYPES[np.dtype(dtype)])
    for name, field in reader.fields.items():
        if name in _OWN_KEYS:
            continue
        kind = field.types[0]
        item = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=item)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).reshape(tuple(reversed(tensor.shape.tolist())))
        writer.add_tensor(tensor.name, values.astype(dtype if values.ndim > 1 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.replace(target)
