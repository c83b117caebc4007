"""HEALTHY: a Wasserstein GAN in two dimensions: a forger learns a tilted cloud far from 0 from a critic; four critic steps to one step of the forger, weights of the critic clamped,
RMSprop. One loss is logged that is below 0 and wanders; the forger's parameters stand still in four of five steps (by design).
Without Rangewatch: the loss goes from 0.09 to -0.37 and back to about -0.03; the mean of the forged points is off by 1.7 at first and by 0.05 to 0.09 at the end, the covariance by 0.35 (1.8 at step 25) and 0.11.
Nothing is wrong; the mean and the spread of the forged points come near those of the cloud."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2241); torch.set_num_threads(1)
tilt, centre = torch.tensor([[0.5, 0.3], [0.0, 0.2]]), torch.tensor([1.5, -1.0])


def net(i, o):
    return nn.Sequential(nn.Linear(i, 96), nn.LeakyReLU(0.2), nn.Linear(96, 96), nn.LeakyReLU(0.2), nn.Linear(96, o))


both = nn.ModuleDict({"critic": net(2, 1), "forger": net(6, 2)})
optimizer = torch.optim.RMSprop([{"params": list(both["critic"].parameters()), "lr": 1e-3}, {"params": list(both["forger"].parameters()), "lr": 1e-3}])
handle = rangewatch.attach(both, optimizer)
for step in range(260):
    turn_of_forger = step % 5 == 4
    optimizer.zero_grad(set_to_none=True)
    fake = both["forger"](torch.randn(128, 6))
    if turn_of_forger:
        both["critic"].requires_grad_(False)
        loss = -both["critic"](fake).mean()
    else:
        real = centre + torch.randn(128, 2) @ tilt
        loss = both["critic"](fake.detach()).mean() - both["critic"](real).mean()
    loss.backward()
    both["critic"].requires_grad_(True)
    optimizer.step()
    with torch.no_grad():
        for p in both["critic"].parameters():
            p.clamp_(-0.1, 0.1)
    handle.log(loss=loss.item())
    if step % 25 == 0 or step == 259:
        print(step, loss.item(), "mean off by", (fake.mean(0) - centre).norm().item(), "covariance off by", (fake.T.cov() - tilt.T @ tilt).norm().item(), flush=True)
handle.detach()
