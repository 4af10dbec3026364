// A test of src/runtime/guidance.cpp by itself: the logger and the readers of arguments are replaced here.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <sstream>

#include "core/util.h"
#include "runtime/guidance.h"

void log_printf(sd_log_level_t, const char*, int, const char*, ...) {}

KeyValueArgs parse_key_value_args(const char* args, const char*) {
    KeyValueArgs pairs;
    std::stringstream all(args == nullptr ? "" : args);
    for (std::string one; std::getline(all, one, ',');) {
        pairs.emplace_back(one.substr(0, one.find('=')), one.substr(one.find('=') + 1));
    }
    return pairs;
}

bool parse_strict_float(const std::string& text, float& value) {
    char* end = nullptr;
    value     = std::strtof(text.c_str(), &end);
    return end != text.c_str() && *end == '\0';
}

bool parse_strict_bool(const std::string&, bool&) {
    return false;
}

using sd::guidance::GuidanceInput;
using sd::guidance::GuiderOutput;

static int failures = 0;

static void check(bool holds, const char* what) {
    if (!holds) {
        std::printf("failed: %s\n", what);
        ++failures;
    }
}

static sd::Tensor<float> random_tensor(int seed) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(8 * 8 * 4);
    for (float& value : values) {
        value = normal(engine);
    }
    return sd::Tensor<float>({8, 8, 4, 1}, values);
}

static double largest_difference(const sd::Tensor<float>& a, const sd::Tensor<float>& b) {
    double largest = 0.0;
    for (int64_t i = 0; i < a.numel(); ++i) {
        largest = std::max(largest, std::fabs(static_cast<double>(a[i]) - b[i]));
    }
    return largest;
}

static void a_scheduled_scale_is_the_scale_of_apg() {
    auto cond = random_tensor(1), uncond = random_tensor(2);
    GuidanceInput input;
    input.pred_cond   = &cond;
    input.pred_uncond = &uncond;
    sd::guidance::AdaptiveProjectedGuidanceParams params;
    params.eta = 0.5f;
    sd::guidance::AdaptiveProjectedGuidance scheduled(7.0f, 1.0f, params), direct(3.0f, 1.0f, params);
    check(largest_difference(scheduled.forward(input, {}, 3.0f).pred, direct.forward(input, {}).pred) == 0.0,
          "APG uses the scheduled scale");
}

#ifdef WITH_POSTERIOR_MEAN_CAP
static double length(const GuidanceInput& input, const sd::Tensor<float>& pred) {
    double total = 0.0;
    for (int64_t i = 0; i < pred.numel(); ++i) {
        double m = static_cast<double>(input.c_out) * pred[i] + static_cast<double>(input.c_skip) * (*input.x)[i];
        total += m * m;
    }
    return std::sqrt(total);
}

static void the_cap_is_reached_and_never_passed() {
    auto cond = random_tensor(1), uncond = random_tensor(2), x = random_tensor(3);
    GuidanceInput input;
    input.pred_cond   = &cond;
    input.pred_uncond = &uncond;
    input.x           = &x;
    int capped        = 0;
    for (float sigma : {0.05f, 0.3f, 0.6f, 0.999f}) {
        input.c_out = -sigma;
        for (float scale : {1.5f, 3.0f, 7.0f, 30.0f}) {
            auto plain = sd::guidance::ClassifierFreeGuidance(scale, 1.0f).forward(input, {});
            for (float gamma : {1.0f, 1.05f, 1.5f}) {
                auto result  = sd::guidance::PosteriorMeanCap(gamma).forward(input, plain);
                double bound = gamma * length(input, cond), got = length(input, result.pred);
                check(got <= bound * (1 + 1e-5), "the bound holds");
                if (length(input, plain.pred) <= bound) {
                    check(largest_difference(result.pred, plain.pred) == 0.0, "what fits is left alone");
                } else {
                    ++capped;
                    check(got >= bound * (1 - 1e-5), "as much is kept as fits");
                }
            }
        }
    }
    check(capped > 10, "the cap acted");
    input.pred_uncond = nullptr;
    auto alone        = sd::guidance::PosteriorMeanCap(1.0f).forward(input, GuiderOutput{uncond, {}, {}, {}, {}});
    check(largest_difference(alone.pred, uncond) == 0.0, "without a negative nothing is capped");
}

static void arguments_are_read() {
    using sd::guidance::parse_posterior_mean_cap_arg;
    check(parse_posterior_mean_cap_arg("apg_eta=1,pmc_gamma=1.1") == 1.1f, "pmc_gamma is read");
    check(parse_posterior_mean_cap_arg("pmc_gamma=0.9") == 0.0f, "a gamma below 1 is refused");
    check(parse_posterior_mean_cap_arg(nullptr) == 0.0f, "without it the cap is off");
}
#endif

int main() {
#ifdef WITH_POSTERIOR_MEAN_CAP
    the_cap_is_reached_and_never_passed();
    arguments_are_read();
#else
    a_scheduled_scale_is_the_scale_of_apg();
#endif
    std::printf("%d failures\n", failures);
    return failures != 0;
}
