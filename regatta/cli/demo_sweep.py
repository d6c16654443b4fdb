"""Eight small networks on scikit-learn's digits, trained as one job: the program behind `regatta demo`.

python digits.py              train them all
regatta explain digits.py     what that takes, before it is spent
"""

import torch

import regatta


def model_fn(config):
    net = torch.nn.Sequential(
        torch.nn.Linear(64, config["hidden"]), torch.nn.ReLU(), torch.nn.Linear(config["hidden"], 10)
    )
    return net, torch.optim.Adam(net.parameters(), lr=config["lr"])


def loss_fn(model, batch, config):
    x, y = batch
    return torch.nn.functional.cross_entropy(model(x), y)


data = regatta.Dataset.digits(partitions=4)
space = regatta.search.grid(hidden=[32, 128], lr=[1e-2, 1e-3], batch_size=[32, 64])
sweep = regatta.Sweep(data, space, model_fn, loss_fn=loss_fn, epochs=3)

if __name__ == "__main__":
    print(sweep.launch().best)
