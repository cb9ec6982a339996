#include "muster/cluster/server_options_from_flags.h"

#include <gmock/gmock.h>

#include "muster/base/status.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kTwoTasks = R"({"worker": ["127.0.0.1:1"], "ps": ["127.0.0.1:2"]})";

TEST(ServerOptionsFromFlags, SayWhichTaskThisIsAndWhatItShows) {
  const char* words[] = {"task",  "--cluster", kTwoTasks,   "--task_type", "ps",        "--task_index", "0",
                         "--own", "flag",      "--storage", "/some/disk",  "--storage", "/another",     "--insecure"};

  const ServerOptions options = server_options_from_flags(std::size(words), words);

  EXPECT_EQ(options.task, (TaskId{"ps", 0}));
  EXPECT_TRUE(options.insecure);
  EXPECT_THAT(options.worker.storage, ElementsAre("/some/disk", "/another"));
  EXPECT_FALSE(options.credentials.any());
}

TEST(ServerOptionsFromFlags, NameCredentialsThatAreNotThere) {
  const char* words[] = {"task",         "--cluster", kTwoTasks,       "--task_type", "ps",
                         "--task_index", "0",         "--credentials", "/nowhere"};
  try {
    server_options_from_flags(std::size(words), words);
    ADD_FAILURE() << "read";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kNotFound);
    EXPECT_THAT(error.what(), HasSubstr("/nowhere/ca.pem"));
  }
}

TEST(ServerOptionsFromFlags, NeedATask) {
  const char* words[] = {"task", "--cluster", kTwoTasks};
  try {
    server_options_from_flags(std::size(words), words);
    ADD_FAILURE() << "which one?";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("which task this process is"));
  }
}

}  // namespace
}  // namespace muster
