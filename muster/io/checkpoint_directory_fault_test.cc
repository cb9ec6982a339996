// Disks that fail. What passes is waited for; what does not is an error that says so, and never costs a checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <map>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/base/test_errors.h"
#include "muster/io/disk.h"
#include "muster/io/test_checkpoints.h"
#include "muster/io/test_files.h"

namespace muster {
namespace {

using namespace ::muster::testing_support;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

constexpr int kPassing[] = {EIO, ESTALE, ETIMEDOUT, EAGAIN, EHOSTDOWN};

class FailingDisk : public ::testing::Test {
 protected:
  FailingDisk() : directory_(scratch_.path()) { save(directory_, 1); }

  ScopedDirectory scratch_;
  CheckpointDirectory directory_;
};

TEST_F(FailingDisk, ThatComesBackIsWaitedForByReaders) {
  for (int error : kPassing) {
    std::map<std::string, int> calls;
    // Whatever is called, on whatever file, fails the first three times.
    disk::ScopedFaults faults([&](std::string_view call, const std::string& path) {
      return call != "close" && ++calls[std::string(call) + path] <= 3 ? error : 0;
    });

    EXPECT_EQ(latest_intact_step(directory_), 1) << std::generic_category().message(error);
    EXPECT_THAT(steps_of(directory_), ElementsAre(1));
    EXPECT_GT(faults.pauses(), 10);
  }
}

TEST_F(FailingDisk, ThatComesBackIsWaitedForByWriters) {
  for (int error : kPassing) {
    for (const char* failing : {"open", "write", "mkdir", "rename", "stat", "fsync", "close"}) {
      std::map<std::string, int> calls;
      disk::ScopedFaults faults([&](std::string_view call, const std::string& path) {
        const bool directory = !path.ends_with(".json") && !path.ends_with(".safetensors");
        if (call != failing || (directory && call == "fsync")) return 0;
        return ++calls[path] <= 2 ? error : 0;
      });
      const bool written = std::string_view(failing) == "write" || std::string_view(failing) == "fsync" ||
                           std::string_view(failing) == "close";

      save(directory_, 2);

      EXPECT_EQ(latest_intact_step(directory_), 2) << failing;
      // A write or a sync that failed is made good by another file: a second sync would say that all is well.
      if (written) {
        EXPECT_GE(faults.failures(), 3) << failing;
      }
      directory_.remove(2);
    }
  }
}

TEST_F(FailingDisk, IsNotTakenForDamage) {
  save(directory_, 2);
  for (const char* failing : {"open", "pread", "fstat", "stat"}) {
    disk::ScopedFaults faults([&](std::string_view call, const std::string& path) {
      return call == failing && path.find("ckpt-2/") != std::string::npos ? EIO : 0;
    });

    for (const Status& status : {caught([&] { (void)directory_.latest(); }), caught([&] { (void)directory_.all(); }),
                                 caught([&] { (void)directory_.index(2); })}) {
      EXPECT_EQ(status.code(), StatusCode::kUnavailable) << failing;
      EXPECT_THAT(status.message(), AllOf(HasSubstr("ckpt-2"), HasSubstr("Input/output error")));
    }
    EXPECT_LT(faults.pauses(), 200) << "it does not wait for ever";
  }
  EXPECT_EQ(latest_intact_step(directory_), 2);
}

TEST_F(FailingDisk, IsSaidWhereItCannotBeListed) {
  disk::ScopedFaults faults([](std::string_view call, const std::string&) { return call == "list" ? EIO : 0; });

  EXPECT_EQ(caught([&] { (void)directory_.latest(); }).code(), StatusCode::kUnavailable);
}

TEST_F(FailingDisk, IsSaidByTheNameOfTheDirectoryThatAnotherCheckpointIsToBeIn) {
  disk::ScopedFaults faults([](std::string_view call, const std::string&) { return call == "mkdir" ? EACCES : 0; });

  const Status status = caught([&] { directory_.begin(2); });

  EXPECT_EQ(status.code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(status.message(), AllOf(HasSubstr(str_cat("file \"", scratch_.path(), "\": create a checkpoint in it")),
                                      Not(HasSubstr(".tmp"))));
}

TEST_F(FailingDisk, IsSaidByTheNameOfTheCheckpointThatIsWritten) {
  for (const char* file : {"shard-", "index.json"}) {
    for (const char* failing : {"open", "write", "fsync"}) {
      disk::ScopedFaults faults([&](std::string_view call, const std::string& path) {
        return call == failing && path.find(file) != std::string::npos ? ENOSPC : 0;
      });

      const Status status = caught([&] { save(directory_, 2); });

      EXPECT_GT(faults.failures(), 0) << failing << " " << file;
      EXPECT_THAT(status.message(),
                  AllOf(HasSubstr(str_cat(scratch_.path(), "/ckpt-2/", file)), Not(HasSubstr(".tmp"))));
    }
  }
}

TEST_F(FailingDisk, NeverCostsTheCheckpointOfAStepThatIsSavedAgain) {
  for (const char* failing : {"open", "pread", "fstat", "stat"}) {
    {
      disk::ScopedFaults faults([&](std::string_view call, const std::string& path) {
        return call == failing && path.find("ckpt-1") != std::string::npos ? EIO : 0;
      });
      EXPECT_EQ(caught([&] { save(directory_, 1); }).code(), StatusCode::kUnavailable) << failing;
    }
    EXPECT_EQ(latest_intact_step(directory_), 1) << failing;
    EXPECT_EQ(caught([&] { save(directory_, 1); }).code(), StatusCode::kAlreadyExists);
  }
}

TEST_F(FailingDisk, LeavesTheDamagedWhereItIsWhenTheNewOneCannotBePut) {
  write_file(scratch_.path("ckpt-1/index.json"), "{}");
  {
    LogCapture quiet;
    disk::ScopedFaults faults([&, renames = 0](std::string_view call, const std::string& path) mutable {
      return call == "rename" && path.ends_with("ckpt-1") && ++renames == 1 ? ENOSPC : 0;
    });
    EXPECT_EQ(caught([&] { save(directory_, 1); }).code(), StatusCode::kResourceExhausted);
  }

  directory_.keep(1);
  EXPECT_EQ(read_file(scratch_.path("ckpt-1/index.json")), "{}");
}

TEST_F(FailingDisk, ThatFailsTheLastSyncSaysSoAndKeepsTheCheckpoint) {
  Status status;
  const std::string temporary = directory_.begin(2);
  const CheckpointIndex index = write_shards(temporary, 2, 4, 2);
  {
    disk::ScopedFaults faults([&](std::string_view call, const std::string& path) {
      return call == "fsync" && path == scratch_.path() ? EIO : 0;
    });
    status = caught([&] { directory_.commit(temporary, index); });
    directory_.abandon(temporary);
  }

  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("fsync: Input/output error"));
  EXPECT_EQ(latest_intact_step(directory_), 2);
}

TEST_F(FailingDisk, DoesNotMakeKeepRemoveOrWait) {
  save(directory_, 2);
  save(directory_, 3);
  disk::ScopedFaults faults([&](std::string_view call, const std::string& path) {
    return call == "pread" && path.find("ckpt-3/") != std::string::npos ? EIO : 0;
  });

  directory_.keep(2);

  EXPECT_THAT(names_in(scratch_.path()), UnorderedElementsAre("ckpt-1", "ckpt-2", "ckpt-3"));
  EXPECT_EQ(faults.pauses(), 0);
}

TEST_F(FailingDisk, HasDoneWhatItWasAskedThoughItsAnswerWasLost) {
  disk::ScopedFaults faults([&, renames = 0](std::string_view call, const std::string& path) mutable {
    if (call != "rename" || ++renames > 1) return 0;
    const auto temporary = names_in(scratch_.path());
    for (const std::string& name : temporary) {
      if (name.starts_with(".tmp-")) std::filesystem::rename(scratch_.path(name), path);
    }
    return EIO;
  });

  save(directory_, 2);

  EXPECT_EQ(latest_intact_step(directory_), 2);
}

}  // namespace
}  // namespace muster
