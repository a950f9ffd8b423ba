"""Numbers of the papers, compared with ours on data sets of the same name.

Data, no code.
"""

# Wiegreffe & Pinter 2019, Table 2: F1 with trained attention, as they reproduced it,
# and with uniform attention.
UNIFORM = {
    "imdb": {"base": 0.902, "uniform": 0.879},
    "sst": {"base": 0.831, "uniform": 0.822},
    "agnews-binary": {"base": 0.964, "uniform": 0.960},
    "20news": {"base": 0.942, "uniform": 0.934},
}

# Their Table 3: F1 of the diagnostic MLP by guide; the adversary's λ is .001 with half
# the TVD.
DIAGNOSTIC_MLP = {
    "sst": {
        "uniform guide": 0.812,
        "trained guide": 0.817,
        "base guide": 0.824,
        "adversary guide": 0.592,
    },
    "imdb": {
        "uniform guide": 0.863,
        "trained guide": 0.888,
        "base guide": 0.905,
        "adversary guide": 0.700,
    },
}

# Their Table 4: the adversary of the best F1 with a mean JSD above .4. Its λ and its TVD
# are half of ours: here both are doubled.
ADVERSARY = {
    "sst": {"lambda": 0.00105, "f1": 0.823, "tvd": 0.072, "jsd": 0.514},
    "imdb": {"lambda": 0.0016, "f1": 0.906, "tvd": 0.028, "jsd": 0.405},
}

# The papers whose tables a study compares with ours.
PAPERS = {
    "jain-wallace": "Jain & Wallace 2019",
    "serrano-smith": "Serrano & Smith 2019",
    "wiegreffe-pinter": "Wiegreffe & Pinter 2019",
    "tutek-snajder": "Tutek & Šnajder 2020",
    "mohankumar": "Mohankumar et al. 2020",
}

# Question answering, which Jain & Wallace 2019 do not divide by predicted class.
POOLED = ("cnn", "babi1", "babi2", "babi3")

# Their Table 2: Kendall τ, its standard deviation, share significant, for each predicted
# class (of SNLI in the alphabetical order of their code, which the table does not state),
# or of all texts.
TAU: dict[str, dict[tuple[str, str], tuple]] = {
    "sst": {
        ("bilstm", "gradient"): ((0.40, 0.21, 0.59), (0.38, 0.19, 0.58)),
        ("mlp", "gradient"): ((0.69, 0.15, 0.93), (0.69, 0.14, 0.94)),
        ("bilstm", "leave_one_out"): ((0.34, 0.20, 0.47), (0.33, 0.19, 0.47)),
    },
    "imdb": {
        ("bilstm", "gradient"): ((0.37, 0.07, 1.00), (0.37, 0.08, 0.99)),
        ("mlp", "gradient"): ((0.65, 0.05, 1.00), (0.66, 0.05, 1.00)),
        ("bilstm", "leave_one_out"): ((0.30, 0.07, 0.99), (0.31, 0.07, 0.98)),
    },
    "adr": {
        ("bilstm", "gradient"): ((0.45, 0.17, 0.74), (0.45, 0.16, 0.77)),
        ("mlp", "gradient"): ((0.71, 0.13, 0.97), (0.71, 0.13, 0.97)),
        ("bilstm", "leave_one_out"): ((0.29, 0.19, 0.44), (0.40, 0.17, 0.69)),
    },
    "20news": {
        ("bilstm", "gradient"): ((0.08, 0.15, 0.31), (0.13, 0.16, 0.48)),
        ("mlp", "gradient"): ((0.65, 0.09, 0.99), (0.66, 0.09, 1.00)),
        ("bilstm", "leave_one_out"): ((0.05, 0.15, 0.28), (0.14, 0.14, 0.51)),
    },
    "agnews-binary": {
        ("bilstm", "gradient"): ((0.42, 0.11, 0.93), (0.35, 0.13, 0.81)),
        ("mlp", "gradient"): ((0.77, 0.08, 1.00), (0.75, 0.07, 1.00)),
        ("bilstm", "leave_one_out"): ((0.35, 0.13, 0.80), (0.32, 0.13, 0.73)),
    },
    "diabetes": {
        ("bilstm", "gradient"): ((0.47, 0.06, 1.00), (0.38, 0.08, 1.00)),
        ("mlp", "gradient"): ((0.68, 0.02, 1.00), (0.68, 0.02, 1.00)),
        ("bilstm", "leave_one_out"): ((0.44, 0.07, 1.00), (0.38, 0.08, 1.00)),
    },
    "anemia": {
        ("bilstm", "gradient"): ((0.42, 0.05, 1.00), (0.43, 0.06, 1.00)),
        ("mlp", "gradient"): ((0.81, 0.01, 1.00), (0.81, 0.01, 1.00)),
        ("bilstm", "leave_one_out"): ((0.42, 0.05, 1.00), (0.44, 0.06, 1.00)),
    },
    "cnn": {
        ("bilstm", "gradient"): ((0.20, 0.06, 0.99),),
        ("mlp", "gradient"): ((0.48, 0.11, 1.00),),
        ("bilstm", "leave_one_out"): ((0.16, 0.07, 0.95),),
    },
    "babi1": {
        ("bilstm", "gradient"): ((0.23, 0.19, 0.46),),
        ("mlp", "gradient"): ((0.66, 0.17, 0.97),),
        ("bilstm", "leave_one_out"): ((0.23, 0.18, 0.45),),
    },
    "babi2": {
        ("bilstm", "gradient"): ((0.17, 0.12, 0.57),),
        ("mlp", "gradient"): ((0.84, 0.09, 1.00),),
        ("bilstm", "leave_one_out"): ((0.11, 0.13, 0.40),),
    },
    "babi3": {
        ("bilstm", "gradient"): ((0.30, 0.11, 0.93),),
        ("mlp", "gradient"): ((0.76, 0.12, 1.00),),
        ("bilstm", "leave_one_out"): ((0.31, 0.11, 0.94),),
    },
    "snli": {
        ("bilstm", "gradient"): (
            (0.36, 0.22, 0.46),
            (0.42, 0.19, 0.57),
            (0.40, 0.20, 0.52),
        ),
        ("mlp", "gradient"): (
            (0.54, 0.20, 0.76),
            (0.59, 0.18, 0.84),
            (0.53, 0.19, 0.75),
        ),
        ("bilstm", "leave_one_out"): (
            (0.44, 0.18, 0.60),
            (0.43, 0.17, 0.59),
            (0.44, 0.17, 0.61),
        ),
    },
}

# Their Figures 3 to 5, averages over data sets (SNLI aside, where the first two are −.07
# and −.05): by how much gradients and leave-one-out agree better with each other than
# attention with either, and leave-one-out with the average encoder's attention than with
# the BiLSTM's.
TAU_DIFFERENCES = {
    "leave_one_out_tau_difference": 0.2,
    "gradient_tau_difference": 0.25,
    "encoder_difference": 0.375,
}

# The authors' released reruns, all classes together: τ of attention with gradients, of
# attention with leave-one-out and of these two with each other, each with the share
# significant, and F1 of class 1, of more than two classes accuracy. None: not released,
# or NaN there.
RERUNS: dict[str, dict[tuple[str, str], tuple]] = {
    "sst": {
        ("bilstm", "additive"): ((0.35, 0.49), (0.29, 0.36), (0.66, 0.91), 0.784),
        ("bilstm", "dot_product"): ((0.07, 0.09), (0.06, 0.07), (0.71, 0.94), 0.817),
        ("mlp", "additive"): ((0.61, 0.85), (0.62, 0.88), (0.56, 0.73), 0.800),
        ("cnn", "additive"): ((0.48, 0.75), (0.35, 0.51), (0.49, 0.74), 0.825),
        ("mlp", "dot_product"): ((0.35, 0.50), (0.31, 0.42), None, None),
        ("cnn", "dot_product"): ((0.24, 0.25), (0.22, 0.21), None, None),
    },
    "imdb": {
        ("bilstm", "additive"): ((0.44, 1.0), (0.34, 0.99), (0.52, 1.0), 0.896),
        ("bilstm", "dot_product"): ((0.12, 0.62), (0.09, 0.45), (0.60, 1.0), 0.879),
        ("mlp", "additive"): ((0.67, 1.0), (0.58, 1.0), (0.64, 1.0), 0.882),
        ("cnn", "additive"): ((0.45, 1.0), (0.29, 0.98), (0.51, 1.0), 0.898),
        ("mlp", "dot_product"): ((None, 0.84), (0.20, 0.87), None, None),
        ("cnn", "dot_product"): ((0.35, 0.99), (0.36, 0.99), None, None),
    },
    "adr": {
        ("bilstm", "additive"): ((0.47, 0.78), (0.32, 0.50), (0.48, 0.75), 0.569),
        ("bilstm", "dot_product"): ((-0.12, 0.27), (0.00, 0.11), (0.50, 0.76), 0.569),
        ("mlp", "additive"): ((0.73, 0.97), (0.59, 0.86), (0.59, 0.76), 0.484),
        ("cnn", "additive"): ((0.43, 0.72), (0.36, 0.59), (0.46, 0.73), 0.515),
        ("mlp", "dot_product"): ((-0.05, 0.15), (-0.05, 0.03), None, None),
        ("cnn", "dot_product"): ((None, 0.14), (0.18, 0.24), None, None),
    },
    "20news": {
        ("bilstm", "additive"): ((0.13, 0.48), (0.12, 0.44), (0.53, 0.99), 0.917),
        ("bilstm", "dot_product"): ((0.13, 0.48), (0.07, 0.38), (0.50, 0.99), 0.934),
        ("mlp", "additive"): ((0.77, 1.0), (0.72, 0.99), (0.62, 0.96), 0.909),
        ("cnn", "additive"): ((0.45, 0.94), (0.32, 0.85), (0.55, 0.97), 0.909),
        ("mlp", "dot_product"): ((0.04, 0.31), (-0.18, 0.71), None, None),
        ("cnn", "dot_product"): ((None, 0.42), (0.19, 0.61), None, None),
    },
    "agnews-binary": {
        ("bilstm", "additive"): ((0.39, 0.86), (0.37, 0.80), (0.61, 0.99), 0.958),
        ("bilstm", "dot_product"): ((0.30, 0.69), (0.18, 0.31), (0.46, 0.93), 0.962),
        ("mlp", "additive"): ((0.77, 1.0), (0.51, 0.97), (0.49, 0.94), 0.955),
        ("cnn", "additive"): ((0.49, 0.98), (0.36, 0.83), (0.46, 0.94), 0.958),
        ("mlp", "dot_product"): ((0.64, 1.0), (0.46, 0.84), None, None),
        ("cnn", "dot_product"): ((0.39, 0.88), (0.37, 0.86), None, None),
    },
    "diabetes": {
        ("bilstm", "additive"): ((0.42, 1.0), (0.42, 1.0), (0.51, 1.0), 0.754),
        ("bilstm", "dot_product"): ((0.22, 1.0), (0.09, 0.94), (0.25, 1.0), 0.685),
        ("mlp", "additive"): ((0.75, 1.0), (0.71, 1.0), (0.62, 1.0), 0.699),
        ("cnn", "additive"): ((0.41, 1.0), (0.35, 1.0), (0.44, 1.0), 0.707),
        ("mlp", "dot_product"): ((0.52, 1.0), (0.51, 1.0), None, None),
        ("cnn", "dot_product"): ((0.46, 1.0), (0.42, 1.0), None, None),
    },
    "anemia": {
        ("bilstm", "additive"): ((0.46, 1.0), (0.47, 1.0), (0.68, 1.0), 0.923),
        ("bilstm", "dot_product"): ((0.48, 1.0), (0.29, 1.0), (0.29, 1.0), 0.880),
        ("mlp", "additive"): ((0.77, 1.0), (0.74, 1.0), (0.70, 1.0), 0.927),
        ("cnn", "additive"): ((0.44, 1.0), (0.50, 1.0), (0.61, 1.0), 0.929),
        ("mlp", "dot_product"): ((0.60, 1.0), (0.56, 1.0), None, None),
        ("cnn", "dot_product"): ((None, 0.94), (None, 0.99), None, None),
    },
    "cnn": {
        ("bilstm", "additive"): ((0.24, 0.99), (0.20, 0.98), (0.54, 1.0), 0.644),
        ("bilstm", "dot_product"): ((0.18, 0.86), (0.22, 0.92), (0.41, 1.0), 0.466),
        ("mlp", "additive"): ((0.50, 1.0), (0.69, 1.0), (0.57, 1.0), 0.367),
        ("cnn", "additive"): ((0.20, 0.99), (0.18, 0.98), (0.57, 1.0), 0.614),
        ("mlp", "dot_product"): ((0.51, 1.0), (0.63, 1.0), None, None),
        ("cnn", "dot_product"): ((0.22, 0.99), (0.22, 0.99), None, None),
    },
    "babi1": {
        ("bilstm", "additive"): ((0.25, 0.55), (0.16, 0.28), (0.50, 0.84), 1.000),
        ("bilstm", "dot_product"): ((0.44, 0.83), (0.42, 0.80), (0.41, 0.78), 0.998),
        ("mlp", "additive"): ((0.72, 0.99), (0.73, 0.99), (0.69, 0.99), 0.436),
        ("cnn", "additive"): ((0.24, 0.51), (0.16, 0.23), (0.30, 0.65), 0.887),
        ("mlp", "dot_product"): ((0.71, None), (0.82, None), None, None),
        ("cnn", "dot_product"): ((0.17, None), (0.11, None), None, None),
    },
    "babi2": {
        ("bilstm", "additive"): ((-0.02, 0.27), (-0.01, 0.27), (0.44, 0.91), 0.653),
        ("bilstm", "dot_product"): ((0.17, 0.57), (0.22, 0.68), (0.28, 0.83), 0.427),
        ("mlp", "additive"): ((0.68, 1.0), (0.65, 1.0), (0.47, 0.99), 0.167),
        ("cnn", "additive"): ((0.18, 0.66), (0.19, 0.71), (0.37, 0.98), 0.333),
        ("mlp", "dot_product"): ((0.60, None), (0.89, None), None, None),
        ("cnn", "dot_product"): ((0.15, None), (0.24, None), None, None),
    },
    "babi3": {
        ("bilstm", "additive"): ((0.24, 0.87), (0.26, 0.89), (0.50, 0.97), 0.643),
        ("bilstm", "dot_product"): ((0.30, 0.89), (0.34, 0.92), (0.40, 0.97), 0.515),
        ("mlp", "additive"): ((0.61, 1.0), (0.72, 1.0), (0.55, 1.0), 0.320),
        ("cnn", "additive"): ((0.18, 0.91), (0.18, 0.91), (0.47, 1.0), 0.294),
        ("mlp", "dot_product"): ((0.48, None), (0.75, None), None, None),
        ("cnn", "dot_product"): ((0.01, None), (0.08, None), None, None),
    },
    "snli": {
        ("bilstm", "additive"): ((0.31, 0.37), (0.29, 0.35), (0.24, 0.25), 0.779),
        ("bilstm", "dot_product"): ((0.12, 0.11), (0.16, 0.13), (0.31, 0.35), 0.766),
        ("mlp", "additive"): ((0.58, 0.80), (0.59, 0.81), (0.59, 0.78), 0.750),
        ("cnn", "additive"): ((0.23, 0.25), (0.26, 0.29), (0.34, 0.43), 0.775),
        ("mlp", "dot_product"): ((0.50, 0.70), (0.53, 0.75), None, None),
        ("cnn", "dot_product"): ((0.27, 0.30), (0.29, 0.32), None, None),
    },
}

# The same reruns, additive attention: median ε-max JSD (ε = .05, search) for each
# predicted class, or of all texts.
EPSILON_MAX_JSD: dict[str, dict[str, tuple[float, ...]]] = {
    "sst": {"bilstm": (0.49, 0.50), "mlp": (0.47, 0.50), "cnn": (0.44, 0.54)},
    "imdb": {"bilstm": (0.57, 0.56), "mlp": (0.61, 0.61), "cnn": (0.60, 0.60)},
    "adr": {"bilstm": (0.51, 0.47), "mlp": (0.54, 0.47), "cnn": (0.57, 0.30)},
    "20news": {"bilstm": (0.65, 0.42), "mlp": (0.69, 0.46), "cnn": (0.66, 0.49)},
    "agnews-binary": {"bilstm": (0.66, 0.67), "mlp": (0.59, 0.60), "cnn": (0.58, 0.56)},
    "diabetes": {"bilstm": (0.65, 0.47), "mlp": (0.64, 0.67), "cnn": (0.65, 0.63)},
    "anemia": {"bilstm": (0.66, 0.61), "mlp": (0.66, 0.65), "cnn": (0.68, 0.62)},
    "cnn": {"bilstm": (0.53,), "mlp": (0.47,), "cnn": (0.51,)},
    "babi1": {"bilstm": (0.54,), "mlp": (0.38,), "cnn": (0.49,)},
    "babi2": {"bilstm": (0.65,), "mlp": (0.67,), "cnn": (0.51,)},
    "babi3": {"bilstm": (0.67,), "mlp": (0.47,), "cnn": (0.53,)},
    "snli": {
        "bilstm": (0.50, 0.39, 0.44),
        "mlp": (0.51, 0.35, 0.43),
        "cnn": (0.44, 0.37, 0.38),
    },
}

# The same reruns: median over texts of Δŷ under shuffling, by encoder and quarter of the
# largest weight, for each predicted class, or of all texts.
PERMUTATION: dict[str, dict[tuple[str, int], tuple[float | None, ...]]] = {
    "sst": {
        ("bilstm", 0): (0.027, 0.032),
        ("bilstm", 1): (0.047, 0.035),
        ("bilstm", 2): (0.079, 0.062),
        ("bilstm", 3): (0.107, None),
        ("mlp", 0): (0.215, 0.111),
        ("mlp", 1): (0.225, 0.120),
        ("mlp", 2): (0.355, 0.157),
        ("cnn", 0): (0.186, 0.063),
        ("cnn", 1): (0.210, 0.082),
        ("cnn", 2): (0.281, 0.076),
        ("cnn", 3): (0.359, 0.081),
    },
    "imdb": {
        ("bilstm", 0): (0.078, 0.111),
        ("bilstm", 1): (0.105, 0.229),
        ("mlp", 0): (0.287, 0.187),
    },
    "adr": {
        ("bilstm", 0): (0.037, 0.132),
        ("bilstm", 1): (0.058, 0.169),
        ("bilstm", 2): (0.071, 0.280),
        ("bilstm", 3): (0.083, 0.263),
    },
    "20news": {
        ("bilstm", 0): (0.002, 0.108),
        ("bilstm", 1): (0.021, 0.201),
        ("bilstm", 2): (0.065, 0.489),
        ("bilstm", 3): (0.281, 0.505),
    },
    "agnews-binary": {
        ("bilstm", 0): (0.002, 0.004),
        ("bilstm", 1): (0.013, 0.006),
        ("bilstm", 2): (0.072, 0.009),
        ("bilstm", 3): (0.623, 0.031),
    },
    "diabetes": {
        ("bilstm", 0): (0.057, 0.765),
        ("bilstm", 1): (0.063, 0.770),
        ("bilstm", 2): (0.098, 0.774),
        ("bilstm", 3): (0.083, 0.794),
    },
    "anemia": {
        ("bilstm", 0): (0.146, 0.645),
        ("bilstm", 1): (0.160, 0.636),
        ("bilstm", 2): (0.204, 0.681),
    },
    "cnn": {
        ("bilstm", 0): (0.706,),
        ("bilstm", 1): (0.777,),
        ("bilstm", 2): (0.852,),
        ("bilstm", 3): (0.882,),
    },
    "babi1": {
        ("bilstm", 1): (0.779,),
        ("bilstm", 2): (0.945,),
        ("bilstm", 3): (0.899,),
    },
    "babi2": {
        ("bilstm", 0): (0.471,),
        ("bilstm", 1): (0.647,),
        ("bilstm", 2): (0.852,),
        ("bilstm", 3): (0.965,),
    },
    "babi3": {
        ("bilstm", 0): (0.784,),
        ("bilstm", 1): (0.844,),
        ("bilstm", 2): (0.959,),
        ("bilstm", 3): (0.983,),
    },
    "snli": {
        ("bilstm", 0): (0.015, 0.343, 0.154),
        ("bilstm", 1): (0.093, 0.579, 0.301),
        ("bilstm", 2): (0.329, 0.795, 0.484),
        ("bilstm", 3): (0.592, 0.911, 0.685),
    },
}

# Serrano & Smith 2019, box plots of flat models: median share of weights erased before
# the decision flips (±.02).
FRACTION_TO_FLIP = {
    "yahoo": {
        "bigru": {"random": 1.0, "attention": 0.97, "gradient": 0.53, "product": 0.28},
        "cnn": {"random": 0.89, "attention": 0.26, "gradient": 0.12, "product": 0.08},
        "none": {"random": 0.85, "attention": 0.18, "gradient": 0.20, "product": 0.08},
    },
    "imdb10": {
        "bigru": {"random": 0.90, "attention": 0.40, "gradient": 0.11, "product": 0.04},
        "cnn": {"random": 0.63, "attention": 0.03, "gradient": 0.02, "product": 0.01},
        "none": {"random": 0.54, "attention": 0.01, "gradient": 0.05, "product": 0.01},
    },
    "amazon": {
        "bigru": {"random": 0.99, "attention": 0.99, "gradient": 0.46, "product": 0.39},
        "cnn": {"random": 0.66, "attention": 0.10, "gradient": 0.08, "product": 0.04},
        "none": {"random": 0.02, "attention": 0.02, "gradient": 0.08, "product": 0.04},
    },
    "yelp": {
        "bigru": {"random": 0.99, "attention": 0.96, "gradient": 0.48, "product": 0.42},
        "cnn": {"random": 0.80, "attention": 0.18, "gradient": 0.09, "product": 0.05},
        "none": {"random": 0.62, "attention": 0.10, "gradient": 0.13, "product": 0.03},
    },
}

# Data sets that are not the paper's, and the nearest one that is.
NEAREST = {"imdb": "imdb10"}

# Wiegreffe & Pinter 2019, Table 2: the F1 that Jain & Wallace reported.
REPORTED = {"imdb": 0.88, "sst": 0.81, "agnews-binary": 0.96, "20news": 0.94}

# Their Figure 3, approximately: median JSD of attention to that of other seeds.
SEED_JSD = {"sst": ".04–.07", "imdb": ".08"}

# Tutek & Šnajder 2020: F1 with trained attention, and its change under uniform and under
# permuted attention, in points.
REGULARISED = {
    "sst": {
        "additive": {
            "base": (84.2, -2.8, -5.0),
            "concat": (83.7, -1.9, -4.7),
            "tying": (83.5, -7.0, -18.0),
            "mlm": (82.8, -5.9, -15.6),
        },
        "dot_product": {
            "base": (84.3, -2.6, -6.5),
            "concat": (84.1, -3.4, -7.4),
            "tying": (83.5, -9.9, -20.0),
            "mlm": (82.7, -3.0, -5.4),
        },
    },
    "agnews-binary": {
        "additive": {
            "base": (95.9, -2.3, -3.9),
            "concat": (95.9, -1.5, -2.6),
            "tying": (95.0, -3.3, -14.6),
            "mlm": (95.2, -1.5, -6.6),
        },
        "dot_product": {
            "base": (95.9, -2.3, -3.8),
            "concat": (96.1, -1.9, -3.0),
            "tying": (95.4, -3.0, -12.2),
            "mlm": (95.4, -2.0, -5.3),
        },
    },
    "20news": {
        "additive": {
            "base": (90.9, -9.8, -14.1),
            "concat": (91.3, -25.0, -28.2),
            "tying": (91.4, -39.7, -43.2),
            "mlm": (91.5, -76.3, -66.0),
        },
        "dot_product": {
            "base": (91.1, -35.2, -36.8),
            "concat": (91.0, -40.4, -37.1),
            "tying": (90.9, -37.0, -42.8),
            "mlm": (89.1, -79.6, -72.8),
        },
    },
    "imdb": {
        "additive": {
            "base": (88.3, -10.0, -13.4),
            "concat": (88.3, -10.2, -14.0),
            "tying": (87.1, -56.2, -43.3),
            "mlm": (87.5, -22.8, -26.5),
        },
        "dot_product": {
            "base": (88.2, -18.6, -22.9),
            "concat": (87.9, -17.2, -20.8),
            "tying": (87.2, -57.7, -45.3),
            "mlm": (87.8, -15.3, -18.5),
        },
    },
}
