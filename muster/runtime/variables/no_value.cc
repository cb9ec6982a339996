#include "muster/runtime/variables/no_value.h"

#include <string_view>

namespace muster {
namespace {

constexpr std::string_view kNoValueDetail = "muster: there is no value of ";

}  // namespace

Status no_value(StatusCode code, const std::string& variable, const std::string& message) {
  return {code, message, "", str_cat(kNoValueDetail, variable)};
}

std::optional<std::string> variable_without_value(const Status& status) {
  if (!status.detail().starts_with(kNoValueDetail)) return std::nullopt;
  return status.detail().substr(kNoValueDetail.size());
}

}  // namespace muster
