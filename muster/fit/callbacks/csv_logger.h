// The numbers of epochs as a table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/fit/callbacks/callback.h"

namespace muster {

// A line for each epoch, the names in the first one. A number that an epoch has not leaves its place empty. One that
// comes later gets a column at the end, for which the file is written anew; it is left out of what is no plain file.
// Goes on in the file if the training begins after the first epoch; lines of epochs that it takes again, since they
// were lost before their backup, go. Makes the directory. Throws Error{kUnavailable} for a file that cannot be written,
// and Error{kFailedPrecondition} for one to go on in that is no such table. A warning, once in a training, says that
// the file has grown between two epochs: another job writes to it, too. It only watches.
class CsvLogger : public Callback {
 public:
  // Throws Error{kInvalidArgument} for no path.
  explicit CsvLogger(std::string path);
  bool only_watches() const override { return true; }
  void on_train_begin(Training& training) override;
  void on_epoch_end(Training& training, const Logs& logs) override;

 private:
  void look_for_others();
  void begin(int epoch, const Logs& logs);
  void go_on(int epoch);
  void widen(const Logs& logs);
  void write(const std::string& text, bool anew);
  void replace_by(const std::string& text);

  std::string path_;
  bool saw_others_ = false;
  bool begun_ = false;                  // by this training
  std::optional<uintmax_t> left_{};     // bytes of the file behind its last line; nothing before, or of a pipe
  std::vector<std::string> columns_{};  // after that of the epoch
};

}  // namespace muster
