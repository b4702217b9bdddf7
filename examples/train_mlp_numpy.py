"""A small network in numpy on a real data set of scikit-learn: one process, checkpoints, resumes, obeys SIGUSR1."""

from training import Checkpoints, InputWait, Perceptron, arguments, batch, data_set, train


def main():
    """Train; see ``--help``."""
    parser = arguments(__doc__, iterations=400)
    parser.add_argument("--data", choices=["wine_data", "breast_cancer", "digits"], default="breast_cancer")
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()
    features, labels = data_set(options.data)
    network = Perceptron(features.shape[1], options.hidden, int(labels.max()) + 1, options.seed)
    done, saved = Checkpoints().load()
    if saved is not None:
        network.weights, network.velocity = saved["weights"], saved["velocity"]

    input_wait = InputWait()

    def step(iteration):
        with input_wait:
            rows = batch(len(labels), options.batch_size, options.seed, iteration)
            inputs, expected = features[rows], labels[rows]
        loss, gradient = network.gradient(inputs, expected)
        network.update(gradient)
        return loss

    print(f"{options.data}: from iteration {done}", flush=True)
    train(
        options,
        step,
        lambda: {"weights": network.weights, "velocity": network.velocity},
        done,
        input_wait=input_wait,
    )


if __name__ == "__main__":
    main()
