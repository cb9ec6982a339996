#include "muster/base/strings.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(Strings, PutsTextAndNumbersInARow) {
  const std::string_view view = "view";
  const char* pointer = "pointer";

  EXPECT_EQ(str_cat("literal ", view, " ", pointer, " ", std::string("string"), " ", 7, " ", 0.5, " ", size_t{1}),
            "literal view pointer string 7 0.5 1");
}

TEST(Strings, MakesNothingOfNothing) { EXPECT_EQ(str_cat(), ""); }

TEST(Strings, AppendsToAString) {
  std::string text = "a";

  str_append(text, std::string_view("b"), 3);

  EXPECT_EQ(text, "ab3");
}

}  // namespace
}  // namespace muster
