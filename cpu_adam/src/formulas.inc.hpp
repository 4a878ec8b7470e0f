// The update rules, written once for every instruction set. The scalar kernel includes this file,
// and the vector kernels include it for each instruction set, inside their namespace. The includer
// defines `Vec`, a float or a vector of floats, with add, sub, mul, div, root, mul_add(a, b, c) = a
// * b + c rounded once, larger_of(a, b) = b where a <= b, else a, and sign_of (zero of zero, NaN of
// NaN).
//
// A rule takes an element's gradient, already multiplied by the gradient factor, and updates the
// element's states. The order of operations is the definition: docs/numerics.md.

// Without an include guard, on purpose.

using Moments = Vec[kMostMoments];

// StepConstants broadcast to every lane.
struct Lanes {
  explicit KERNEL_INLINE Lanes(const StepConstants& c)
      : l2(splat(c.l2)),
        keep(splat(c.keep)),
        beta1(splat(c.beta1)),
        one_minus_beta1(splat(c.one_minus_beta1)),
        beta2(splat(c.beta2)),
        one_minus_beta2(splat(c.one_minus_beta2)),
        epsilon(splat(c.epsilon)),
        step_size(splat(c.step_size)),
        has_l2(c.has_l2),
        nesterov(c.nesterov) {}
  Vec l2, keep, beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon, step_size;
  bool has_l2, nesterov;

  static KERNEL_INLINE Vec square_root(Vec a) { return root(a); }

  // L2 decay: g + l2 p (torch.optim with weight_decay).
  KERNEL_INLINE Vec with_decay(Vec g, Vec p) const { return has_l2 ? mul_add(l2, p, g) : g; }
};

// Adam: Kingma & Ba 2015, Alg. 1, in the order given at the end of section 2, which divides once.
// step_size contains both bias corrections; epsilon contains that of v too (constants.cpp).
// Decoupled decay: Loshchilov & Hutter 2019, Alg. 2.
struct Adam {
  static constexpr Rule kRule = Rule::adam;
  static constexpr std::size_t kMoments = 2;
  template <class L>
  static KERNEL_INLINE void update(L& c, Vec g, Vec& p, Moments& moments) {
    update_moments(c, g, p, moments);
    move(c, p, moments[0], moments[1]);
  }

  template <class L>
  static KERNEL_INLINE void update_moments(L& c, Vec g, Vec& p, Moments& moments) {
    Vec& m = moments[0];
    Vec& v = moments[1];
    g = c.with_decay(g, p);
    p = mul(p, c.keep);
    m = mul_add(c.one_minus_beta1, g, mul(c.beta1, m));
    v = mul_add(mul(c.one_minus_beta2, g), g, mul(c.beta2, v));
  }
  template <class L>
  static KERNEL_INLINE void move(L& c, Vec& p, Vec m, Vec v) {
    p = sub(p, div(mul(c.step_size, m), add(c.square_root(v), c.epsilon)));
  }
};

// Reddi, Kale & Kumar 2018, Alg. 2. Like PyTorch, takes the largest v before its bias correction.
struct AmsGrad {
  static constexpr Rule kRule = Rule::amsgrad;
  static constexpr std::size_t kMoments = 3;
  template <class L>
  static KERNEL_INLINE void update(L& c, Vec g, Vec& p, Moments& moments) {
    Adam::update_moments(c, g, p, moments);
    moments[2] = larger_of(moments[1], moments[2]);
    Adam::move(c, p, moments[0], moments[2]);
  }
};

// Duchi, Hazan & Singer 2011, Fig. 1 with a diagonal matrix, as torch.optim.Adagrad.
struct Adagrad {
  static constexpr Rule kRule = Rule::adagrad;
  static constexpr std::size_t kMoments = 1;
  template <class L>
  static KERNEL_INLINE void update(L& c, Vec g, Vec& p, Moments& moments) {
    Vec& sum = moments[0];
    g = c.with_decay(g, p);
    sum = mul_add(g, g, sum);
    p = sub(p, div(mul(c.step_size, g), add(c.square_root(sum), c.epsilon)));
  }
};

// Chen et al. 2023, Alg. 2.
struct Lion {
  static constexpr Rule kRule = Rule::lion;
  static constexpr std::size_t kMoments = 1;
  template <class L>
  static KERNEL_INLINE void update(L& c, Vec g, Vec& p, Moments& moments) {
    Vec& m = moments[0];
    const Vec direction = sign_of(mul_add(c.one_minus_beta1, g, mul(c.beta1, m)));
    p = sub(mul(p, c.keep), mul(c.step_size, direction));
    m = mul_add(c.one_minus_beta2, g, mul(c.beta2, m));
  }
};

// torch.optim.SGD: beta1 is the momentum, one_minus_beta1 is 1 - dampening.
struct Momentum {
  static constexpr Rule kRule = Rule::momentum;
  static constexpr std::size_t kMoments = 1;
  template <class L>
  static KERNEL_INLINE void update(L& c, Vec g, Vec& p, Moments& moments) {
    Vec& m = moments[0];
    g = c.with_decay(g, p);
    m = mul_add(c.one_minus_beta1, g, mul(c.beta1, m));
    const Vec direction = c.nesterov ? mul_add(c.beta1, m, g) : m;
    p = sub(p, mul(c.step_size, direction));
  }
};

// torch.optim.SGD without momentum.
struct Sgd {
  static constexpr Rule kRule = Rule::sgd;
  static constexpr std::size_t kMoments = 0;
  template <class L>
  static KERNEL_INLINE void update(L& c, Vec g, Vec& p, Moments&) {
    p = sub(p, mul(c.step_size, c.with_decay(g, p)));
  }
};
