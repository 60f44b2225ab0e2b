// Fuzzes the generator in process: specs are changed at random, and no input may crash it, take
// more than a second, or make it print more than a megabyte.
//
// Inputs run in a child process, which tells this one where it is; so a crash is one input's, whose
// text is written to a file, and the next child goes on behind it.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>

#include "codegen/derive.hpp"
#include "codegen/read.hpp"
#include "codegen/validate.hpp"
#include "mutator.hpp"
#include "target.hpp"

namespace narrowcast::fuzz {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr double kMostSeconds = 1;
constexpr size_t kMostBytes = 1'000'000;
constexpr double kHang = 20;  // seconds in which no input ends
constexpr uint64_t kMostFailures = 10;
constexpr int kSlow = 100, kLoud = 101;  // exit statuses of a child

struct Options {
  double seconds = 60;
  uint64_t inputs = ~uint64_t{0}, seed = 1;
  bool only_one = false;
  uint64_t only = 0;
  std::vector<std::string> folders;
};

// What both processes see.
struct Progress {
  std::atomic<uint64_t> number{0};  // of the input that runs
  std::atomic<uint64_t> good{0};    // specs without errors, of all children
  std::atomic<bool> stop{false};
};

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<fs::path> specs_of(const std::vector<std::string>& folders) {
  std::vector<fs::path> paths;
  for (const std::string& folder : folders) {
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.path().extension() == ".toml") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// The plans of the specs that have no errors, without products.
codegen::Plans plans_of(const std::vector<fs::path>& paths) {
  codegen::Plans plans;
  for (const fs::path& path : paths) {
    const codegen::Source source{path.string(), text_of(path)};
    codegen::Diagnostics diagnostics(source);
    const codegen::Format format = codegen::read(source, diagnostics);
    codegen::validate(format, diagnostics);
    if (diagnostics.empty()) plans.emplace(format.name.value, codegen::derive(format));
  }
  return plans;
}

double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Runs inputs until it is told to stop. Returns the child's exit status.
int run_inputs(const Mutator& mutator, Target target, const Options& options, Progress& progress) {
  while (!progress.stop && progress.number < options.inputs) {
    const std::string text = mutator.input(options.seed, progress.number);
    const uint64_t good = target.good();
    const double start = cpu_seconds();
    if (target.run(text) > kMostBytes) return kLoud;
    if (cpu_seconds() - start > kMostSeconds) return kSlow;
    progress.good += target.good() - good;
    ++progress.number;
  }
  return 0;
}

std::string what_happened(int status, bool hangs) {
  if (hangs) return "hangs";
  if (WIFSIGNALED(status)) return std::string("ends by ") + ::strsignal(WTERMSIG(status));
  if (WEXITSTATUS(status) == kSlow) return "takes more than a second";
  if (WEXITSTATUS(status) == kLoud) return "prints more than a megabyte";
  return "ends with status " + std::to_string(WEXITSTATUS(status)) + ", see above";
}

class Session {
 public:
  Session(Mutator mutator, Target target, Options options)
      : mutator_(std::move(mutator)),
        target_(std::move(target)),
        options_(std::move(options)),
        progress_(*new (::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Progress) {}

  // Returns this process's exit status.
  int run() {
    while (!is_over()) run_child();
    report();
    return failures_ == 0 ? 0 : 1;
  }

 private:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  bool is_over() const {
    return seconds() > options_.seconds || progress_.number >= options_.inputs ||
           failures_ >= kMostFailures;
  }

  void run_child() {
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) std::exit(run_inputs(mutator_, target_, options_, progress_));
    const auto [status, hangs] = wait_for(child);
    if (!hangs && WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    ++failures_;
    keep(progress_.number, what_happened(status, hangs));
    ++progress_.number;
  }

  struct End {
    int status;
    bool hangs;
  };

  // Until the child ends, or is ended because it hangs.
  End wait_for(pid_t child) {
    uint64_t last = progress_.number;
    double since = seconds();
    int status = 0;
    while (::waitpid(child, &status, WNOHANG) == 0) {
      ::usleep(10'000);
      if (seconds() > options_.seconds) progress_.stop = true;
      if (seconds() > next_report_) report();
      if (const uint64_t now = progress_.number; now != last) {
        last = now;
        since = seconds();
      }
      if (seconds() - since < kHang) continue;
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return {status, true};
    }
    return {status, false};
  }

  void keep(uint64_t number, const std::string& what) const {
    const std::string path =
        "fuzz_" + std::to_string(options_.seed) + "_" + std::to_string(number) + ".toml";
    std::ofstream(path, std::ios::binary) << mutator_.input(options_.seed, number);
    std::printf("FAILED: input %llu of seed %llu %s. It was written to %s\n",
                static_cast<unsigned long long>(number),
                static_cast<unsigned long long>(options_.seed), what.c_str(), path.c_str());
  }

  void report() {
    next_report_ = seconds() + 10;
    const auto number = static_cast<unsigned long long>(progress_.number);
    const auto good = static_cast<unsigned long long>(progress_.good);
    std::printf("%6.0f s: %llu inputs, %.0f a second; %llu without errors; %llu failures\n",
                seconds(), number, static_cast<double>(number) / seconds(), good,
                static_cast<unsigned long long>(failures_));
    std::fflush(stdout);
  }

  Mutator mutator_;
  Target target_;
  Options options_;
  Progress& progress_;
  Clock::time_point start_ = Clock::now();
  double next_report_ = 10;
  uint64_t failures_ = 0;
};

// False if the command line makes no sense.
bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (word == "--seconds") {
      options.seconds = std::atof(value), ++i;
    } else if (word == "--inputs") {
      options.inputs = std::strtoull(value, nullptr, 10), ++i;
    } else if (word == "--seed") {
      options.seed = std::strtoull(value, nullptr, 10), ++i;
    } else if (word == "--only") {
      options.only_one = true;
      options.only = std::strtoull(value, nullptr, 10), ++i;
    } else {
      options.folders.push_back(word);
    }
  }
  return !options.folders.empty();
}

int run(Options options) {
  const std::vector<fs::path> paths = specs_of(options.folders);
  std::vector<std::string> corpus;
  for (const fs::path& path : paths) corpus.push_back(text_of(path));
  Mutator mutator(std::move(corpus));
  Target target(plans_of(paths));
  if (!options.only_one) return Session(std::move(mutator), std::move(target), options).run();
  const std::string text = mutator.input(options.seed, options.only);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  target.run(text);
  return 0;
}

}  // namespace
}  // namespace narrowcast::fuzz

int main(int argc, char** argv) {
  narrowcast::fuzz::Options options;
  if (narrowcast::fuzz::parse(argc, argv, options)) return narrowcast::fuzz::run(options);
  std::fprintf(
      stderr,
      "usage: fuzz_codegen [--seconds N] [--inputs N] [--seed N] [--only NUMBER] FOLDER...\n"
      "\n"
      "  FOLDER   of specs (*.toml), from which inputs are made\n"
      "  --only   prints the input of that number and runs it in this process\n");
  return 2;
}
