#include "muster/rpc/credentials/certificates.h"

#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <set>

#include "muster/base/status.h"
#include "muster/cluster/read_file.h"
#include "muster/cluster/resolvers/resolver_from_flags.h"
#include "muster/lines/tcp_socket.h"
#include "tools/subcommands.h"

namespace muster::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::days kAuthorityLives(3650);
constexpr mode_t kForAll = 0644, kForOwner = 0600, kDirectoryForOwner = 0700;

struct CertsFlags {
  std::string cluster, out;
  int days = 365;
  std::vector<std::string> clients{"client"};
};

constexpr const char* kAuthority = "authority";  // the part of the directory that stays where it is

// Whose certificate is wanted: a task's or a client's.
struct Wanted {
  std::string name;
  CertificateUse use{};
};

struct CertificateRow {
  std::string name, hosts, until, what;
};

// All or nothing: a file is there as a whole, with its mode, or not at all.
void write_file(const fs::path& path, const std::string& text, mode_t mode) {
  const std::string draft = path.string() + ".new";
  ::unlink(draft.c_str());
  const int file = ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  bool done = file >= 0;
  for (size_t written = 0; done && written < text.size();) {
    const ssize_t count = ::write(file, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    done = count >= 0;
    written += done ? static_cast<size_t>(count) : 0;
  }
  done = done && ::fsync(file) == 0;
  if (file >= 0) done = ::close(file) == 0 && done;
  if (!done || ::rename(draft.c_str(), path.c_str()) != 0) {
    throw unavailable("certs: cannot write ", path.string(), " (", std::strerror(errno), ")");
  }
}

void make_directory(const fs::path& directory) {
  std::error_code error;
  if (const fs::path above = directory.parent_path(); !above.empty()) fs::create_directories(above, error);
  if (::mkdir(directory.c_str(), kDirectoryForOwner) == 0) return;
  const int why = errno;
  if (!fs::is_directory(directory, error)) {
    throw unavailable("certs: cannot make the directory ", directory.string(), " (", std::strerror(why), ")");
  }
  struct stat facts {};
  if (::stat(directory.c_str(), &facts) == 0 && (facts.st_mode & 077) != 0) {
    std::cerr << "muster: others may look into " << directory.string()
              << ", though not read its keys; to keep them out: chmod 700 " << directory.string() << "\n";
  }
}

// Where an identity is.
struct IdentityFiles {
  fs::path certificate, key;

  std::optional<Identity> read() const {
    if (!fs::exists(certificate) || !fs::exists(key)) return std::nullopt;
    return Identity{read_file(certificate), read_file(key)};
  }
  // The key first: where there is a certificate, there is its key.
  void write(const Identity& identity) const {
    write_file(key, identity.key, kForOwner);
    write_file(certificate, identity.certificate, kForAll);
  }
};

// Leaves a file that is right as it is: whoever uses it need not look at it again.
void write_if_other(const fs::path& path, const std::string& text, mode_t mode) {
  if (!fs::exists(path) || read_file(path) != text) write_file(path, text, mode);
}

std::string date(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d", &parts);
  return text.data();
}

CertificateRow row_of(const Wanted& wanted, const Identity& identity, std::string what) {
  return {wanted.name, absl::StrJoin(wanted.use.hosts, ", "), date(expiry(identity.certificate)), std::move(what)};
}

// The one that is there, or a new one. One that is there is never replaced: all certificates hang on it.
Identity authority_in(const fs::path& directory, std::vector<CertificateRow>& rows) {
  const bool has_certificate = fs::exists(directory / "ca.pem"), has_key = fs::exists(directory / "ca.key");
  if (has_certificate != has_key) {
    throw failed_precondition("certs: ", directory.string(), " has ", has_key ? "ca.key" : "ca.pem", " without ",
                              has_key ? "ca.pem" : "ca.key", "; bring the other, or choose an empty directory");
  }
  const IdentityFiles files{directory / "ca.pem", directory / "ca.key"};
  if (const std::optional<Identity> known = files.read()) {
    if (const auto complaint = identity_complaint(*known, known->certificate)) {
      throw failed_precondition("certs: the authority ", (directory / "ca.pem").string(), " ", *complaint,
                                "; choose an empty directory for a new one");
    }
    rows.push_back(row_of({kAuthority}, *known, "kept"));
    return *known;
  }
  const Identity made = make_authority("muster cluster authority", kAuthorityLives);
  files.write(made);
  rows.push_back(row_of({kAuthority}, made, "made"));
  return made;
}

// What all parts of the directory have in common.
struct Common {
  Identity authority;
  std::string token;
  std::chrono::days valid_for;
};

// One part: all that a task or a client needs, and no more.
void provide(const Wanted& wanted, const Common& common, const fs::path& part, std::vector<CertificateRow>& rows) {
  make_directory(part);
  write_if_other(part / "ca.pem", common.authority.certificate, kForAll);
  write_if_other(part / "token", common.token, kForOwner);
  std::string what = "made";
  const IdentityFiles files{part / "certificate.pem", part / "key.pem"};
  if (const std::optional<Identity> known = files.read()) {
    auto complaint = identity_complaint(*known, common.authority.certificate);
    if (!complaint) complaint = use_complaint(known->certificate, wanted.use);
    if (!complaint) {
      rows.push_back(row_of(wanted, *known, "kept"));
      return;
    }
    what = "made anew: the old one " + *complaint;
  }
  const Identity made =
      make_certificate(common.authority, {.name = wanted.name, .use = wanted.use, .valid_for = common.valid_for});
  files.write(made);
  rows.push_back(row_of(wanted, made, what));
}

std::vector<Wanted> wanted_by(const ClusterSpec& cluster, const std::vector<std::string>& clients) {
  std::vector<Wanted> all;
  std::set<std::string> names{kAuthority};
  for (const TaskId& task : cluster.all_tasks()) {
    const CertificateUse use{.task = task.to_string(), .hosts = {host_of_address(cluster.task_address(task))}};
    all.push_back({short_name(use.task), use});
    names.insert(all.back().name);
  }
  for (const std::string& client : clients) {
    const bool plain = std::all_of(client.begin(), client.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
    });
    if (client.empty() || !plain) {
      throw invalid_argument("--client \"", client, "\": expected a name of letters, digits, '_', '-' and '.'");
    }
    if (!names.insert(client).second) {
      throw invalid_argument("--client \"", client, "\": the name is taken; expected one of its own");
    }
    all.push_back({client});
  }
  return all;
}

void print(const std::vector<CertificateRow>& rows) {
  CertificateRow title{"name", "hosts", "valid until", ""};
  size_t name = title.name.size(), hosts = title.hosts.size();
  for (const CertificateRow& row : rows) {
    name = std::max(name, row.name.size());
    hosts = std::max(hosts, row.hosts.size());
  }
  auto line = [&](const CertificateRow& row) {
    auto cell = [](const std::string& text, size_t width) { return text + std::string(width - text.size() + 2, ' '); };
    std::string text = cell(row.name, name) + cell(row.hosts, hosts) + cell(row.until, title.until.size()) + row.what;
    text.erase(text.find_last_not_of(' ') + 1);
    std::cout << text << "\n";
  };
  line(title);
  for (const CertificateRow& row : rows) line(row);
}

// As one word of a shell.
std::string in_quotes(const std::string& word) {
  const bool plain = std::all_of(word.begin(), word.end(),
                                 [](unsigned char c) { return std::isalnum(c) != 0 || std::strchr("/._-:", c); });
  return plain && !word.empty() ? word : str_cat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

void make_certs(const CertsFlags& flags) {
  const char* words[] = {"muster", "--cluster", flags.cluster.c_str()};
  const ClusterSpec cluster = resolver_from_flags(flags.cluster.empty() ? 1 : 3, words).cluster_spec();
  const std::vector<TaskId> tasks = cluster.all_tasks();
  if (tasks.empty()) throw invalid_argument("which cluster? Give --cluster, or set TF_CONFIG");
  const std::vector<Wanted> wanted = wanted_by(cluster, flags.clients);

  fs::path directory = fs::path(flags.out).lexically_normal();
  if (!directory.has_filename()) directory = directory.parent_path();  // "certs/"
  make_directory(directory);
  std::vector<CertificateRow> rows;
  make_directory(directory / kAuthority);
  const Identity authority = authority_in(directory / kAuthority, rows);
  const fs::path token = directory / kAuthority / "token";
  const bool has_token = fs::exists(token);
  if (!has_token) write_file(token, make_token() + "\n", kForOwner);
  const Common common{authority, read_file(token), std::chrono::days(flags.days)};
  for (const Wanted& one : wanted) provide(one, common, directory / one.name, rows);
  rows.push_back({"token", "", "", has_token ? "kept" : "made"});

  print(rows);
  const std::string cluster_flag = flags.cluster.empty() ? "" : " --cluster " + in_quotes(flags.cluster);
  auto part = [&](const std::string& name) { return in_quotes((directory / name).string()); };
  std::cout << "\nEach directory in " << in_quotes(directory.string()) << " is what one task or client needs: copy "
            << part(wanted[0].name) << " to the machine of " << wanted[0].name << ", and so on.\n"
            << part(kAuthority) << " stays here: who has its ca.key can make certificates. Next, for each task:\n"
            << "  muster server" << cluster_flag << " --task_type " << tasks[0].job << " --task_index "
            << tasks[0].index << " --credentials " << part(wanted[0].name) << "\n";
  if (!flags.clients.empty()) {
    std::cout << "and then\n  muster status" << cluster_flag << " --credentials " << part(flags.clients[0]) << "\n";
  }
}

}  // namespace

void add_certs(CLI::App& muster) {
  auto flags = std::make_shared<CertsFlags>();
  CLI::App* command = muster.add_subcommand("certs", "Make the certificates and the token of a cluster");
  command->add_option("--cluster", flags->cluster,
                      "A file with the cluster as JSON, or the JSON itself; else TF_CONFIG");
  command->add_option("--out", flags->out, "The directory to write them to; what it has already is kept")->required();
  command->add_option("--days", flags->days, "How long a certificate is valid")
      ->check(CLI::Range(1, 36500))
      ->capture_default_str();
  command->add_option("--client", flags->clients, "Who else gets a certificate; may be given several times")
      ->capture_default_str();
  command->footer(
      "To renew a certificate before it expires, delete its certificate.pem, run this again, and copy the directory to "
      "its machine: tasks and clients take it without a restart.");
  command->callback([flags] { make_certs(*flags); });
}

}  // namespace muster::tools
