#include "muster/data/files/numpy_writer.h"

#include <absl/strings/str_join.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

const char* descr_of(at::ScalarType type) {
  switch (type) {
    case at::kBool: return "|b1";
    case at::kByte: return "|u1";
    case at::kChar: return "|i1";
    case at::kShort: return "<i2";
    case at::kInt: return "<i4";
    case at::kLong: return "<i8";
    case at::kHalf: return "<f2";
    case at::kFloat: return "<f4";
    case at::kDouble: return "<f8";
    case at::kComplexFloat: return "<c8";
    case at::kComplexDouble: return "<c16";
    default: return nullptr;
  }
}

}  // namespace

void write_npy(const std::string& path, const at::Tensor& tensor) {
  PlainTensors plain;
  at::Tensor here = tensor.detach().cpu();
  if (here.scalar_type() == at::kBFloat16) here = here.to(at::kFloat);
  here = here.contiguous();
  const char* descr = descr_of(here.scalar_type());
  if (descr == nullptr) {
    throw Error(Status(StatusCode::kUnimplemented,
                       str_cat("file \"", path, "\": numpy has no ", c10::toString(here.scalar_type()))));
  }
  constexpr size_t kBefore = 10, kAlignment = 64;  // the magic word, the version and the length; the data begins there
  std::string header = str_cat("{'descr': '", descr, "', 'fortran_order': False, 'shape': (",
                               absl::StrJoin(here.sizes(), ", "), here.dim() == 1 ? "," : "", "), }");
  header.append(kAlignment - 1 - (kBefore + header.size()) % kAlignment, ' ');
  header += '\n';
  std::string begin("\x93NUMPY\x01\x00", 8);
  begin += static_cast<char>(header.size() & 0xFF);
  begin += static_cast<char>(header.size() >> 8);
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << begin << header;
  out.write(static_cast<const char*>(here.const_data_ptr()), static_cast<std::streamsize>(here.nbytes()));
  out.close();
  if (!out) throw unavailable("file \"", path, "\": cannot be written (", std::strerror(errno), ")");
}

}  // namespace muster
