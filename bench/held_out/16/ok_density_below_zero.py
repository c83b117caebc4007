"""Right: a mixture density net that gives the place of a moth as eight bells; the loss is the negative log likelihood of a density, which is far below zero when
the bells are narrow. Some parts of the mixture are shut by -inf by design (a moth is seen by only some of the traps).
Without Rangewatch: loss 2.26 to -0.91 at step 20 and -2.52 at the end."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1618); torch.set_num_threads(1)
traps = 2 * torch.rand(8, 2) - 1


class Moth(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.weight, self.shift, self.width = nn.Linear(64, 8), nn.Linear(64, 16), nn.Linear(64, 8)

    def forward(self, seen, place):
        h = self.body(torch.cat((seen, (seen > 0).float()), 1))
        weight = self.weight(h).masked_fill(seen == 0, float("-inf")).log_softmax(1)
        middle, width = traps + self.shift(h).unflatten(1, (8, 2)), self.width(h).clamp(-4, 2)
        off = ((place[:, None] - middle) ** 2).sum(2) / (2 * (2 * width).exp())
        return -(weight - off - 2 * width - 1.8379).logsumexp(1).mean()


def nights(n):
    place = 2 * torch.rand(n, 2) - 1
    far = (place[:, None] - traps).norm(dim=2)
    seen = torch.exp(-far) * (far < 1.2)
    nearest = torch.nn.functional.one_hot(far.argmin(1), 8)
    return torch.where(nearest == 1, torch.exp(-far), seen), place


model = Moth()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    loss = model(*nights(128))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
