// Arrays in numpy's files: one in a .npy, several with a name each in a .npz, which is a zip archive of .npy files.
// The files may come from a stranger: everything but the values is checked before memory is asked for.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace muster {

// What numpy.save writes: formats 1.0 to 3.0, C and Fortran order, either order of bytes; bool, integers, floats of 2,
// 4 and 8 bytes, complex numbers of 8 and 16. The tensor is contiguous, on the CPU, and has the array's element type.
// Throws Error{kDataLoss} for a file that is not as the format says, Error{kUnimplemented}, which names the dtype, for
// arrays of anything else (texts, objects, dates, structures), Error{kNotFound} for no file.
at::Tensor read_npy(const std::string& path);

// What numpy.savez and numpy.savez_compressed write, in the order of the archive, names without ".npy". Throws as
// above, also where the checksum of an array is wrong, and Error{kUnimplemented} for an archive that is encrypted, has
// several parts or is packed by other means than deflate.
std::vector<std::pair<std::string, at::Tensor>> read_npz(const std::string& path);

}  // namespace muster
