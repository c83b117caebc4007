"""House prices from 12 standardised columns: a plain MLP, SGD with momentum, a DataLoader and an epoch loop.
FAULT at step 0: nobody calls optimizer.zero_grad(); each step's gradient is the sum of all gradients since the start.
Without Rangewatch: loss 0.86, 4.3 at step 40, 27 at 120, 1540 at 160, 8e8 at 300 (with zero_grad: 0.14 at 100, 0.04 at 300).
Cause: optimizer (gradients not zeroed). Step: from 0; the norms build up over the first dozens of steps.
Right: call optimizer.zero_grad() in each iteration. Wrong: GradScaler, attention mask, bad rows in the data."""
EXPECT = {"cause": ["optimizer"], "step": [0, 60], "place": None, "rank": None,
          "right": r"(?i)zero_grad|zeroed|accumulat", "wrong": ["GradScaler", r"(?i)attention mask", r"(?i)normali[sz]e the (inputs|targets)"]}
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
import rangewatch

torch.set_num_threads(1)
torch.manual_seed(2024)


def load_houses(n=4096):
    X = torch.randn(n, 12)
    w = torch.randn(12)
    price = X @ w * 0.3 + 0.5 * torch.tanh(X[:, 0] * X[:, 1]) + 0.3 * (X[:, 2] > 0.5).float()
    price = (price - price.mean()) / price.std()
    return TensorDataset(X, price.unsqueeze(1) + 0.05 * torch.randn(n, 1))


class PriceMLP(nn.Module):
    def __init__(self, d_in=12, d_hidden=128):
        super().__init__()
        self.fc1 = nn.Linear(d_in, d_hidden)
        self.fc2 = nn.Linear(d_hidden, d_hidden)
        self.fc3 = nn.Linear(d_hidden, 1)
        self.act = nn.GELU()

    def forward(self, x):
        return self.fc3(self.act(self.fc2(self.act(self.fc1(x)))))


def train(epochs=5, lr=2e-3):
    loader = DataLoader(load_houses(), batch_size=64, shuffle=True)
    model = PriceMLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    loss_fn = nn.MSELoss()
    handle = rangewatch.attach(model, optimizer)
    step = 0
    for epoch in range(epochs):
        running = 0.0
        for xb, yb in loader:
            pred = model(xb)
            loss = loss_fn(pred, yb)
            loss.backward()
            optimizer.step()
            running += loss.item()
            if step % 20 == 0:
                print("epoch", epoch, "step", step, "loss", round(loss.item(), 4), flush=True)
            handle.log(loss=loss.item())
            step += 1
        print(f"epoch {epoch}: mean loss {running / len(loader):.4f}")
    handle.detach()


if __name__ == "__main__":
    train()
